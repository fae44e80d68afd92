"""Whatever a user can type, set or catch is in the docs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpulease
from gpulease import errors
from gpulease.cli.argument_parser import make_parser
from gpulease.cli.main import VERBS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
SOURCES = [path.read_text() for path in sorted((ROOT / "src").rglob("*.py"))]


def every_error() -> list[type[errors.GpuleaseError]]:
    found, rest = [], [errors.GpuleaseError]
    while rest:
        kind = rest.pop()
        found.append(kind)
        rest += kind.__subclasses__()
    return found


def test_the_reference_of_the_command_line_is_what_the_parsers_say() -> None:
    check = [sys.executable, str(ROOT / "tools" / "cli_reference.py"), "--check"]
    assert subprocess.run(check).returncode == 0, "run: python tools/cli_reference.py"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_and_every_option_a_help_text(verb: str) -> None:
    parser = make_parser(verb)
    assert parser.epilog
    assert "examples:" in parser.epilog
    assert all(action.help for action in parser._actions)


def test_every_verb_is_in_the_table_of_engines() -> None:
    text = (REFERENCE / "engines.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    named = {verb for cell in cells for verb in re.findall(r"`([a-z-]+)`", cell)}
    assert set(VERBS) - named == set()


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_is_documented_and_in_the_tree(kind: type[errors.GpuleaseError]) -> None:
    assert f"`{kind.code}`" in (REFERENCE / "errors.md").read_text()
    assert kind.__name__ in (errors.__doc__ or "")
    assert kind.next_step


def test_every_setting_is_documented() -> None:
    used = {name for source in SOURCES for name in re.findall(r"\bGPULEASE_[A-Z_]+\b", source)}
    documented = (REFERENCE / "settings.md").read_text()
    assert [name for name in sorted(used) if f"`{name}`" not in documented] == []


def test_every_public_name_is_documented() -> None:
    documented = (REFERENCE / "python.md").read_text()
    assert [name for name in gpulease._HOMES if f"gpulease.{name}" not in documented] == []
    assert all(hasattr(gpulease, name) for name in gpulease._HOMES)
