"""The pages of docs/, which are installed with the package: by topic, as `gpulease help TOPIC` names them."""

from __future__ import annotations

import os

FOLDERS = ("", "tutorial", "how-to", "concepts", "reference", "architecture", "decisions")


def folder() -> str:
    """Beside the code of an installed package; in a checkout, where they are written."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "docs")
    return installed if os.path.isdir(installed) else os.path.normpath(os.path.join(package, "..", "..", "docs"))


def topics() -> list[str]:
    """As `how-to/queue`; `figures`, which is in no folder."""
    found = []
    for part in FOLDERS:
        place = os.path.join(folder(), part)
        names = sorted(os.listdir(place)) if os.path.isdir(place) else []
        found += [os.path.join(part, name.removesuffix(".md")) for name in names if name.endswith(".md")]
    return found


def find(wanted: str) -> list[str]:
    """The topics that a name may mean: `how-to/queue`, `queue`, and a decision by its number."""
    known = topics()
    name = wanted.strip("/").removeprefix("docs/").removesuffix(".md").lower()
    parts = [(topic, topic.lower()) for topic in known]  # `from-gpulimit.zh-CN`
    exact = [topic for topic, low in parts if low == name] or [
        topic for topic, low in parts if low.rpartition("/")[2] == name
    ]
    return exact or [topic for topic in known if name[-4:].isdecimal() and topic.startswith("decisions/" + name[-4:])]


def read(topic: str) -> str:
    with open(os.path.join(folder(), f"{topic}.md"), encoding="utf-8") as file:
        return file.read()


def title(topic: str) -> str:
    return read(topic).partition("\n")[0].lstrip("# ")
