"""A version of gpulease from before places had two folders: its code from the history, and a database that it wrote."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from support.needs import program
from support.waiting import PATIENCE

COMMIT = "e08dd22"
ROOT = Path(__file__).parents[2]
DUMP = Path(__file__).with_name("state_version_3.sql")


def write_state(path: Path) -> None:
    """With an ended, a waiting and a held job, a reservation, an excluded device, a quota and a setting."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript(DUMP.read_text().replace('"HOST"', f'"{os.uname().nodename}"'))


def sources(folder: Path) -> dict[str, str]:
    """The variables with which Python runs that version; a test is skipped where there is no history."""
    folder.mkdir()
    packed = subprocess.run([program("git"), "archive", COMMIT, "src", "native"], cwd=ROOT, capture_output=True)
    if packed.returncode != 0:
        pytest.skip("the history of the repository is not here")
    subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
    # It builds a simulated driver of its own when it is first asked, which takes a busy machine a while.
    return {"PYTHONPATH": str(folder / "src"), "GPULEASE_PROBE_DEADLINE": str(PATIENCE)}
