"""Processes whose memory map is locked for good (frozen.c): whoever reads their command line waits for ever.

They are ended before anything else looks at all processes, and end by themselves after half a minute.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from gpulease.simulation.library import find_compilers
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


@contextmanager
def frozen(
    folder: Path, *command: str, before: tuple[str, ...] = (), lock: str = "", environ: dict[str, str] | None = None
) -> Iterator[Frozen]:
    """One such process, until the block ends; `command` is run as its child, and `before` becomes it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [*before, "unshare", "-Urm", frozen_program(), str(folder), lock, *command]
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
