"""The drop-ins as `gpulease shims` writes them, and programs that find them on PATH and PYTHONPATH."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from functools import cache
from glob import glob
from pathlib import Path

from support.machine import PATIENCE, Machine

OLDEST = (3, 6)


class DropIns:
    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        done = machine.run("shims", str(folder))
        assert done.returncode == 0, done.stderr
        self.environ = {
            **machine.environ,
            "PATH": f"{folder}/bin{os.pathsep}{machine.environ['PATH']}",
            "PYTHONPATH": f"{folder}/python",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**self.environ, **more}
        return subprocess.run(words, env=environ, capture_output=True, text=True, timeout=PATIENCE)

    def python(self, code: str, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
        return self.run(python, "-c", code, *words)

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=self.environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


@cache
def old_python() -> str | None:
    """A Python of the oldest version that the drop-ins are for, if there is one on this machine."""
    name = f"python{OLDEST[0]}.{OLDEST[1]}"
    places = [f"{folder}/{name}" for folder in os.environ.get("PATH", "").split(os.pathsep)]
    for path in [*places, *glob(f"{pwd.getpwuid(os.getuid()).pw_dir}/.pyenv/versions/*/bin/{name}")]:
        if os.access(path, os.X_OK) and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None
