"""The file of a state in SQLite: made and put into its place, whole or not at all; and how many commits it had.

SQLite takes a log that was cut, damaged or left behind for one that ends there: acknowledged jobs and leases are gone
then, and nothing says so. So the number of durable commits is in the database, and after each commit that and the
number of the last event are here. A power cut may take commits that were not forced to the disk, without loss: what
they recorded has ended with it. So events count within one boot.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple


def create(path: str) -> None:
    """An empty state, under another name until it is whole: a file without anything in it was never ours."""
    fresh = f"{path}.new"
    remove(fresh)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table
        upgrade(database, 0)
    move(fresh, path)


def move(fresh: str, path: str) -> None:
    """Into its place, for good. A log beside a file that is gone would be taken for the new one's."""
    os.chmod(fresh, 0o600)
    for ending in ("-wal", "-shm", "-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ending)
    os.rename(fresh, path)
    remove(fresh)  # what lies beside it: its name is not used any more
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove(fresh: str) -> None:
    """What a broker left that was killed in the middle."""
    for ending in ("", "-wal", "-shm", "-journal", ".commits"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(fresh + ending)


def upgrade(database: sqlite3.Connection, present: int) -> None:
    for version, step in steps().items():
        if version > present:
            database.executescript(f"BEGIN;{step};PRAGMA user_version={version};COMMIT;")


def steps() -> dict[int, str]:
    """By the version that it leads to: what an older state lacks. The first one makes everything."""
    text = Path(__file__).with_name("schema.sql").read_text()
    parts = (part.split("\n", 1) for part in text.split("-- Version ")[1:])
    return {int(version): step for version, step in parts}


# -------------------------------------------------------------------- how many commits there were


class Commits(NamedTuple):
    durable: int = 0
    event: int | None = None  # number of the last one; None where all were forgotten, or there was none

    def lacks(self, other: Commits, same_boot: bool) -> bool:
        """Whether some of the other's are missing here."""
        return other.durable > self.durable or (same_boot and (self.event or 0) < (other.event or 0))


class CommitCount:
    def __init__(self, path: str, boot_id: str) -> None:
        self._path, self._boot = path, boot_id
        self._file: int | None = None
        self.known = _read(path)  # what was written here last, and in which boot; None where nothing was

    def forget(self) -> None:
        """Another database begins."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        self.known = None

    def missing(self, present: Commits) -> bool:
        return self.known is not None and present.lacks(self.known[0], self.known[1] == self._boot)

    def write(self, number: Commits) -> None:
        """Always of the same length, so that it needs no room. A failed write does no harm: the file is older."""
        text = f"{number.durable:020d} {number.event or 0:020d} {self._boot}\n".encode()
        with contextlib.suppress(OSError):
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._path, flags, 0o600)
            os.pwrite(self._file, text, 0)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _read(path: str) -> tuple[Commits, str] | None:
    try:
        with open(path, "rb") as file:
            durable, event, boot = file.read(200).split()
        return Commits(int(durable), int(event)), boot.decode()
    except (OSError, ValueError):
        return None
