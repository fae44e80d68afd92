"""A figure is written by a tool from what a bench printed, in docs/figures.md; nobody types one anywhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "figures.md"
BENCHES = {path.name for path in (ROOT / "bench").glob("*.py")}
OTHERS = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page != PAGE and page.parent.name != "decisions"  # a record says what was measured when it was written
]
MEASURED = re.compile(r"\d[\d.,–]*\s?(×|x\b|%|ms\b|µs\b|s\b|[kKMG]i?B\b|bytes\b)")


def test_the_page_has_a_section_of_every_bench_and_of_nothing_else() -> None:
    text = PAGE.read_text()
    assert set(re.findall(r"^## (.*)$", text, re.MULTILINE)) == BENCHES
    assert set(re.findall(r"^python bench/(\S+)", text, re.MULTILINE)) == BENCHES


def test_the_readme_links_to_the_page_and_states_no_figure() -> None:
    text = (ROOT / "README.md").read_text()
    assert "(docs/figures.md)" in text
    assert not MEASURED.search(text)


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_paragraph_that_names_a_bench_states_a_figure(page: Path) -> None:
    named = [line for line in page.read_text().splitlines() if re.search(r"\bbench/\w+\.py|figures\.md", line)]
    assert [line for line in named if MEASURED.search(line)] == []
