"""The verbs that people wait for load only what they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"asyncio", "rich", "redis", "dataclasses", "psutil", "logging", "inspect"}
PROGRAM = """
import sys
before = set(sys.modules)
from gpulease.cli.main import main
try:
    main({words!r})
finally:
    print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}), file=sys.stderr)
"""


def loaded(words: list[str], simulated: dict[str, str]) -> set[str]:
    program = PROGRAM.format(words=words)
    done = subprocess.run([sys.executable, "-c", program], env=simulated, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["select"]])
def test_hot_verbs_load_nothing_heavy(words: list[str], simulated: dict[str, str]) -> None:
    assert loaded(words, simulated) & HEAVY == set()


def test_the_version_loads_next_to_nothing(simulated: dict[str, str]) -> None:
    assert loaded(["--version"], simulated) <= {"gpulease", "__future__"}
