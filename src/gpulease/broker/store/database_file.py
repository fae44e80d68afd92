"""The file of a state in SQLite: made, copied and put into its place, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from gpulease.errors import StateError


def create(path: str) -> None:
    """An empty state, under another name until it is whole: a file without anything in it was never ours."""
    fresh = f"{path}.new"
    remove(fresh)
    os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before the first table
        upgrade(database, 0)
    move(fresh, path)


def copy(source: str, target: str) -> None:
    """A database that nobody writes to now, whole, with what is still in the log beside it."""
    remove(target)
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(sqlite3.connect(source)) as old, contextlib.closing(sqlite3.connect(target)) as new:
            old.backup(new)
            with contextlib.suppress(sqlite3.OperationalError), new:  # of a version without such facts
                new.execute("UPDATE own SET log = 0")
    except sqlite3.Error as error:
        raise StateError(
            f"The state in {source!r} cannot be taken over: {error}.",
            "Make room, or move the file away to begin anew: no lease, no queue. End first what still runs.",
        ) from None


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
    for number, step in list(enumerate(steps()))[present:]:
        database.executescript(f"BEGIN;{step};PRAGMA user_version={number + 1};COMMIT;")


def steps() -> list[str]:
    text = Path(__file__).with_name("schema.sql").read_text()
    return [part.split("\n", 1)[1] for part in text.split("-- Version ")[1:]]
