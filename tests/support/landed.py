"""The version of gpulease before this one, from the history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.needs import program
from support.waiting import PATIENCE

COMMIT = "25db414"
ROOT = Path(__file__).parents[2]


def sources(folder: Path) -> dict[str, str]:
    """The variables with which Python runs that version; a test is skipped where there is no history."""
    folder.mkdir()
    packed = subprocess.run([program("git"), "archive", COMMIT, "src", "native"], cwd=ROOT, capture_output=True)
    if packed.returncode != 0:
        pytest.skip("the history of the repository is not here")
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    # It builds a simulated driver of its own when it is first asked, which takes a busy machine a while.
    return {"PYTHONPATH": str(folder / "src"), "GPULEASE_PROBE_DEADLINE": str(PATIENCE)}
