"""A folder for a bench: everything that was started in it, brokers above all, ends before it is removed."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "BENCH_FOLDER"  # in the environment of whatever is started, however indirectly
PATIENCE = 20.0  # seconds


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gl-") as name:  # short, as a socket's path has to be
        before = os.environ.get(MARK, "")
        os.environ[MARK] = name
        try:
            yield Path(name)
        finally:
            os.environ[MARK] = before
            _end_all(name)


def _end_all(name: str) -> None:
    until = time.monotonic() + PATIENCE
    while pids := _marked(f"{MARK}={name}".encode()):
        if time.monotonic() > until:
            raise TimeoutError(f"processes that the bench started do not end: {pids}")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _marked(mark: bytes) -> list[int]:
    """Not this process: the kernel shows the environment that a process began with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found
