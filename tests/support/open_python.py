"""A Python with gpulease that every user may run: a virtual environment with copies, as an administrator makes one.

The checkout, its .venv and even its interpreter may lie in a folder that is closed to other users, or in /tmp, over
which some tests mount one of their own.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gpulease
from support.surroundings import run_folder

ANYBODY = 61001
EXTRAS = {"gpuget", "notify", "system", "web"}
# setpriv itself still has root's capabilities when it executes a command; the command's own children have none.
RUNS = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', '']))"
SYSTEMS = f"/usr/bin/python{sys.version_info[0]}.{sys.version_info[1]}"


@cache
def open_python() -> str:
    """Made once for all processes of a run of the tests, and removed with its folder."""
    venv = run_folder() / "python"
    with open(f"{venv}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "ready").exists():
            make_venv(venv, EXTRAS)
            (venv / "ready").touch()
    return str(venv / "bin" / "python")


def make_venv(venv: Path, extras: Iterable[str]) -> str:
    """A virtual environment with copies of gpulease and of what it needs; its Python."""
    subprocess.run([_base(), "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    copied = [Path(gpulease.__file__).parent, *sorted(set(_required(extras)))]
    # With their times, so that what Python has compiled stays valid.
    subprocess.run(["cp", "-RL", "--preserve=timestamps", *copied, packages], check=True)
    subprocess.run(["chmod", "-R", "a+rX,go-w", venv], check=True)
    subprocess.run([venv / "bin" / "python", "-m", "compileall", "-q", packages / "gpulease"], check=True)
    return str(venv / "bin" / "python")


@cache
def _base() -> str:
    for candidate in (os.path.realpath(sys.executable), SYSTEMS):
        words = ["setpriv", "--reuid", str(ANYBODY), "--regid", str(ANYBODY), "--clear-groups", candidate, "-c", RUNS]
        if os.path.exists(candidate) and subprocess.run(words, cwd="/", capture_output=True).returncode == 0:
            return candidate
    pytest.skip("there is no Python here that other users may run")


def _required(extras: Iterable[str]) -> Iterator[Path]:
    """The files and folders at the top of what gpulease and these extras need, wherever they are installed."""
    seen, left = set[str](), [("gpulease", extra) for extra in ("", *extras)]
    while left:
        name, extra = left.pop()
        for text in distribution(name).requires or ():
            wanted = Requirement(text)
            if (wanted.marker and not wanted.marker.evaluate({"extra": extra})) or wanted.name in seen:
                continue
            try:
                found = distribution(wanted.name)
            except PackageNotFoundError:  # of an extra that is not installed
                continue
            seen.add(wanted.name)
            left += [(wanted.name, one) for one in ("", *wanted.extras)]
            tops = {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}
            yield from (Path(str(found.locate_file(top))) for top in tops)
