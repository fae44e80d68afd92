"""A job's files get the mode that its submitter's would."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from support.machine import Machine


def test_the_umask_is_the_submitters(machine: Machine, tmp_path: Path) -> None:
    line = f"umask 027; {shlex.join(machine.words('add'))} -- touch made"
    done = subprocess.run(["sh", "-c", line], env=machine.environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
    assert machine.run("wait", "1").returncode == 0
    machine.run("stop")
    assert (tmp_path / "made").stat().st_mode & 0o777 == 0o640
