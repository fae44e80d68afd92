"""Processes whose memory map is locked for good (frozen.c): whoever reads their command line waits for ever.

They are ended before anything else looks at all processes, and end by themselves after half a minute.
"""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gpulease.simulator.library import find_compilers
from support.waiting import PATIENCE


class Frozen(NamedTuple):
    pid: int
    process: subprocess.Popen[str]


@cache
def frozen_program() -> str:
    compiler = find_compilers(os.environ)[0]
    folder = Path(tempfile.mkdtemp(prefix="gpulease-frozen-"))
    folder.chmod(0o755)
    words = [*compiler, "-O1", "-o", str(folder / "frozen"), str(Path(__file__).with_suffix(".c"))]
    subprocess.run(words, check=True, timeout=PATIENCE)
    return str(folder / "frozen")


@cache
def fuse_device() -> str:
    """One that every user may open, as /dev/fuse is on most machines: root makes it."""
    if os.geteuid() != 0:
        return "/dev/fuse"
    path = Path(frozen_program()).with_name("fuse")
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(10, 229))
    path.chmod(0o666)
    return str(path)


@contextmanager
def frozen(
    folder: Path, *command: str, before: tuple[str, ...] = (), lock: str = "", environ: dict[str, str] | None = None
) -> Iterator[Frozen]:
    """One such process, until the block ends; `command` is run as its child, and `before` becomes it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*before, "unshare", "-Urm", frozen_program(), str(folder), lock, *command]
    environ = {**(os.environ if environ is None else environ), "FUSE_DEVICE": fuse_device()}
    process = subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            pytest.skip("FUSE, or a user namespace, is not permitted here")
        yield Frozen(int(line), process)
    finally:
        process.stdin.close()
        process.wait(PATIENCE)
        process.stdout.close()
