"""The file of a state in SQLite: made and put into its place, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path


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
