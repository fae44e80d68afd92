"""`gpulease backup`: a copy of the broker's state, made while it works."""

from __future__ import annotations

import contextlib
import os

from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import StateError, UsageError

EXAMPLES = """\
The file has the queue, leases, settings, events, and the environment variables
of jobs, which may be secret. The broker keeps working while it is copied.
`gpulease help install` says how to restore it.

examples:
  gpulease backup ~/gpulease.db
  sudo gpulease backup /var/backups/gpulease-$(date +%F).db
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("file", metavar="FILE", help="the file to write; it must not exist")


def run(arguments: Namespace) -> int:
    from gpulease.client.connection import Client

    target = os.path.abspath(arguments.file)
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already.", "Name a new file.")
    part = f"{target}.part"
    client = Client(start=False)
    try:
        _copy(client.ask("backup")["file"], part)
        if not client.ask("backup", done=True)["held"]:
            raise StateError("The copy took too long, and is not whole.", "Try again on a quicker disk.")
        jobs = _checked(part)
        os.rename(part, target)
    except ConnectionError:
        raise StateError("The broker ended while its state was copied.", "Try again.") from None
    except OSError as error:
        raise StateError(f"The state cannot be copied to {target}: {error.strerror}.") from None
    finally:
        for ending in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                os.unlink(part + ending)
    print(f"{target}: {jobs} {'job' if jobs == 1 else 'jobs'}")
    return 0


def _copy(source: str, part: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part)
    new = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(source, "rb") as old, open(new, "wb") as file:
        while piece := old.read(1 << 20):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def _checked(part: str) -> int:
    """How many jobs are in it. It becomes one file, that needs none beside it."""
    import sqlite3

    try:
        with contextlib.closing(sqlite3.connect(part)) as database:
            database.execute("PRAGMA journal_mode=DELETE")
            (found,) = database.execute("PRAGMA integrity_check").fetchone()
            number: int = database.execute("SELECT count(*) FROM jobs").fetchone()[0]
    except sqlite3.Error as error:
        found, number = str(error), 0
    if found != "ok":
        raise StateError(f"The copy is damaged: {found}.", "The state may be, too: see `gpulease doctor`.")
    return number
