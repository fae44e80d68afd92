"""`usage` on a Slurm whose accounting does not answer says whose time it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.machine import plain_environment

SQUEUE = '{"meta": {"Slurm": {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}}, "jobs": []}'


@pytest.mark.parametrize(("answers", "whose"), [(True, "of everybody"), (False, "of your own")])
def test_without_accounting_it_is_not_called_everybodys(tmp_path: Path, answers: bool, whose: str) -> None:
    programs = {
        "squeue": f"echo '{SQUEUE}'",
        "sacct": "exit 0" if answers else "echo no >&2; exit 1",
        "sinfo": "exit 1",
    }
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    environ = {
        **plain_environment(),
        "PATH": f"{folder}:{os.environ['PATH']}",
        "GPULEASE_ENGINE": "slurm",
        "XDG_STATE_HOME": str(tmp_path),
    }
    words = [sys.executable, "-m", "gpulease", "usage"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert whose in done.stdout
    assert ("accounting" in done.stdout) != answers
    reply = json.loads(subprocess.run([*words, "--json"], env=environ, capture_output=True, text=True).stdout)
    assert reply["everybody"] == answers
    assert (reply["note"] is None) == answers
