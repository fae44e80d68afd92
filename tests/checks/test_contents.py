"""The page of all pages names them all, and the README is short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()


def test_every_page_is_in_the_contents() -> None:
    named = set(re.findall(r"\]\(([\w/.-]+)\)", (DOCS / "contents.md").read_text()))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    decisions = {page for page in pages if page.startswith("decisions/")}
    assert pages - decisions - named == {"contents.md"}
    assert "decisions/" in named


def test_the_readme_is_short_and_leads_to_all_pages() -> None:
    assert len(README.splitlines()) <= 120
    assert "(docs/contents.md)" in README
    assert "(docs/tutorial/first-steps.md)" in README


def test_the_readme_names_eight_things_that_people_do() -> None:
    table = README.partition("\n## What most people do\n")[2].partition("\n\n## ")[0]
    assert len(re.findall(r"^\| (?!you want|---)", table, re.MULTILINE)) == 8
