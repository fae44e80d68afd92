"""`gpulease help`: the pages of the documentation, and what a verb says of itself."""

from __future__ import annotations

import os
import sys

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import NotFound

EXAMPLES = """\
Without a topic it lists the pages. On a terminal $PAGER shows the page. In a
pipe it is Markdown.

examples:
  gpulease help                     list the pages
  gpulease help queue               the page about the queue
  gpulease help reference/pool      with its folder, if two have this name
  gpulease help add                 the options of a verb
"""
LISTED = ("tutorial", "how-to", "concepts", "reference", "")  # the others are for developers


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a page, or a verb")


def run(arguments: Namespace) -> int:
    from gpulease.cli.argument_parser import TOPICS
    from gpulease.cli.main import ALIASES, VERBS, run_verb

    topic = arguments.topic
    if topic is None:
        return _list()
    found, verb = find(TOPICS.get(topic, topic)), ALIASES.get(topic, topic)
    if verb in VERBS:
        code = run_verb(verb, ["--help"])
        if found:
            print(f"\nMore: {', '.join(f'`gpulease help {page}`' for page in found)}.")
        return code
    if not found:
        raise _unknown(topic)
    _show(read(found[0]))
    for other in found[1:]:
        print(f"gpulease: there is also `gpulease help {other}`.", file=sys.stderr)
    return 0


def _list() -> int:
    print("Pages, each shown by `gpulease help TOPIC`; `gpulease --help` lists the verbs.")
    known = topics()
    for part in LISTED:
        print(f"\n{part or 'others'}")
        for topic in (topic for topic in known if topic.rpartition("/")[0] == part):
            name = topic.rpartition("/")[2]
            shown = name if find(name) == [topic] and not _is_verb(name) else topic
            print(f"  {shown:<22} {title(topic)}"[:80].rstrip())
    return 0


def _is_verb(name: str) -> bool:
    from gpulease.cli.main import VERBS

    return name in VERBS


def _unknown(topic: str) -> NotFound:
    from gpulease.cli.argument_parser import HABITS, near
    from gpulease.cli.main import VERBS

    known = {page.rpartition("/")[2]: page for page in topics()}
    close = near(topic, [*known, *VERBS])
    usual = f"Did you mean `gpulease help {close}`?" if close else "See `gpulease help` for what there is."
    step = HABITS.get(topic, usual)
    return NotFound(f"There is no page and no verb {topic[:40]!r}.", step)


def _show(text: str) -> None:
    """Rendered and by the page at a terminal; as it was written for everything else."""
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    os.environ.setdefault("LESS", "-RFX")
    console = Console()
    console.width = min(console.width, 100)
    with console.pager(styles=True):
        console.print(Markdown(text, hyperlinks=False))


FOLDERS = ("", "tutorial", "how-to", "concepts", "reference", "architecture", "decisions")


def folder() -> str:
    """Beside the code of an installed package; in a checkout, where they are written."""
    package = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
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
