"""Who uses which GPU, by the kernel's word: a lock on a file for each GPU, which ends with its process.

Whoever finds it taken has found a collision, and writes it down. Nothing of gpulease or Redis is asked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def use(folder: Path, gpu: int, who: str) -> Iterator[None]:
    lock = os.open(folder / f"gpu-{gpu}", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = (folder / f"gpu-{gpu}").read_text()
            note(folder, "collisions", f"GPU {gpu}: {who} {os.getpid()} and {other}")
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{who} {os.getpid()}".encode(), 0)
        note(folder, f"grants-{who}", f"{gpu} {os.getpid()}")
        yield
    finally:
        os.close(lock)


def note(folder: Path, name: str, text: str) -> None:
    """One line, whole, however many write."""
    with open(folder / name, "a") as file:
        file.write(text + "\n")


def notes(folder: Path, name: str) -> list[str]:
    try:
        return (folder / name).read_text().splitlines()
    except FileNotFoundError:
        return []
