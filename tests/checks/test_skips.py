"""Nothing is skipped silently: a skip has a reason that says what to do, and root's run allows only listed ones."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from support import skips

ROOT = Path(__file__).parents[2]
TESTS = [path for path in (ROOT / "tests").rglob("*.py") if path.name not in ("needs.py", "test_skips.py")]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skips, "is_strict", lambda: True)


@pytest.mark.usefixtures("strict")
def test_a_skip_that_the_list_does_not_name_fails_roots_run() -> None:
    listed = next(iter(skips.allowed()))
    assert skips.unexpected(Counter({listed: 3, "too tired": 1})) == ["too tired"]


def test_the_list_at_the_end_counts_the_tests_and_says_what_to_install() -> None:
    reply = skips.summary(Counter({"zsh is not installed (Debian: zsh)": 2, "only root can do this": 7}))
    assert reply == [
        "9 tests were skipped:",
        "     7  only root can do this",
        "     2  zsh is not installed (Debian: zsh)",
        "To test these too: apt-get install zsh",
    ]
    assert skips.summary(Counter()) == []


def test_a_missing_program_is_told_of_in_one_way() -> None:
    """By support.needs, whose reasons name the package."""
    bad = [path.name for path in TESTS if re.search(r"importorskip|is not installed\"", path.read_text())]
    assert bad == ["test_first_day_pages.py"]  # docker, which is in the list of allowed skips


def test_every_long_test_belongs_to_a_part_that_the_makefile_knows() -> None:
    known = re.findall(r"^PART \?= (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[0].split()
    used = {name for path in TESTS for name in re.findall(r"mark\.long(?:er)?\(\"(.*?)\"\)", path.read_text())}
    assert used == set(known)
    assert not [path.name for path in TESTS if re.search(r"mark\.long(er)?\b(?!\()", path.read_text())]
