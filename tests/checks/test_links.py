"""Links between pages lead to files that are there, and to headings that are there, with the anchors of GitHub."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from docs_site import CODE_OR_LINK, anchor  # noqa: E402  # the site has the same anchors

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / ".github").rglob("*.md"))]
FENCE = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
REFERENCE = re.compile(r"^\[[^\]]+\]: (\S+)$", re.MULTILINE)
MARKUP = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()\s]+\)|[*`]")  # of a heading: its text remains


def targets(text: str) -> Iterator[str]:
    for found in CODE_OR_LINK.finditer(COMMENT.sub("", text)):
        if found[3]:
            yield found[3]
            yield from (inner[3] for inner in CODE_OR_LINK.finditer(found[2]) if inner[3])  # a picture that is a link
    yield from REFERENCE.findall(FENCE.sub("", text))


def anchors_in(text: str) -> set[str]:
    """A heading that is there twice gets a number the second time."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", FENCE.sub("", text), re.MULTILINE):
        name = anchor(MARKUP.sub(lambda part: part[1] or "", heading))
        while name in found:
            found[name] += 1
            name = f"{name}-{found[name]}"
        found[name] = 0
    return set(found) | set(re.findall(r'<a (?:id|name)="([^"]+)">', text))


@cache
def anchors(page: Path) -> set[str]:
    return anchors_in(page.read_text(encoding="utf-8"))


def broken(page: Path) -> Iterator[str]:
    for target in targets(page.read_text(encoding="utf-8")):
        path, _, fragment = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or not place.is_relative_to(ROOT):
            yield f"{target}: there is no such file"
        elif fragment and place.suffix == ".md" and fragment not in anchors(place):
            yield f"{target}: the headings are {', '.join(sorted(anchors(place)))}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_anchors_are_those_of_github() -> None:
    twice = "## Ein_Wort: 中文, (yes)\n" * 2
    text = f"# One `--option` & [more](x.md)\n{twice}```sh\n# no heading\n```\n"
    assert anchors_in(text) == {"one---option--more", "ein_wort-中文-yes", "ein_wort-中文-yes-1"}


def test_what_stands_in_code_is_no_link() -> None:
    text = "`[a](b)` [`c`](d) ![e](f.svg) [![g](h.png)](i)\n```sh\n[j](k)\n```\n[l]: m\n<!-- [n](o) -->"
    assert sorted(targets(text)) == ["d", "f.svg", "h.png", "i", "m"]
