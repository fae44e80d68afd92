"""The README's two commands on a bare Debian, for root and for a user who may install nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.needs import needs, needs_root

SCRIPT = Path(__file__).parents[2] / "tools" / "fresh_machine.sh"
pytestmark = [needs_root, needs("mmdebstrap", "git"), pytest.mark.timeout(2400)]


def run_as(who: str, log: Path) -> str:
    with open(log, "w") as file:
        done = subprocess.run(["sh", str(SCRIPT), who], stdout=file, stderr=subprocess.STDOUT)
    said = log.read_text(errors="replace")
    assert done.returncode == 0, said[-6000:]
    return said


@pytest.mark.long("fresh-root")
def test_both_commands_work_for_root(tmp_path: Path) -> None:
    said = run_as("root", tmp_path / "log")
    assert "apt-get installs, for simulated GPUs: gcc libc6-dev" in said
    assert "Next, on your own machine:" in said
    assert "is not installed (Debian:" not in said


@pytest.mark.long("fresh-user")
def test_both_commands_work_for_a_user_and_say_what_was_not_tested(tmp_path: Path) -> None:
    said = run_as("user", tmp_path / "log")
    assert "there is no C compiler" in said
    assert "Next, on your own machine:" in said
    assert "only root can do this" in said
    assert "To test these too: apt-get install " in said
