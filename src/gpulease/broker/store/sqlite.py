"""The broker's state in SQLite, write-ahead log, one writer.

A commit survives the death of any process. With `durable` it is also forced to the disk, for what must survive a
power cut: a lease of a process need not, since after a reboot that process is gone. On a network file system there is
a rollback journal instead of the write-ahead log, which SQLite does not support there, and each commit is forced.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from gpulease.broker.store import database_file
from gpulease.broker.store.database_file import CommitCount, Commits
from gpulease.errors import StateError, in_words
from gpulease.model.store import ENDS, EVERY, SOME, TABLES, Document, HistoryEvent, ListedJob, Which
from gpulease.system.identity import boot_id

_encode = json.JSONEncoder(separators=(",", ":")).encode
PUT: dict[str, str] = {table: f"INSERT OR REPLACE INTO {table} VALUES (?, ?)" for table in TABLES}
DROP: dict[str, str] = {table: f"DELETE FROM {table} WHERE key = ?" for table in TABLES}

DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)  # and what is short of bytes or of a table
ALSO_DAMAGED = ("no such table", "no such column", "malformed", "Could not decode")
LOG_KEPT = 4 << 20  # bytes: the log beside the database is cut to this after a large commit
CHECKPOINT = 1000  # pages in the log, from which on they are put into the file
SPARE = 256  # free pages that are kept for what comes next
STEP = 1024  # pages that are given back at a time: some ten milliseconds
NEWEST = 1000  # a version beyond this was never written

# About the file itself, in one row: how many durable commits there were, and whether a log belongs to it.
OWN = """
CREATE TABLE IF NOT EXISTS own (durable INTEGER NOT NULL, log INTEGER NOT NULL);
INSERT INTO own SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM own);
"""

PUT["jobs"] = "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)"
DROP["jobs"] = "DELETE FROM jobs WHERE id = ?"


class SqliteStore:
    def __init__(self, path: str, network: bool = False) -> None:
        self._path, self._network = path, network
        self._log: int | None = None  # the write-ahead log, to be forced to the disk
        self._open = False  # whether something was written since the last commit
        self._held = False  # whether the file is to stay as it is
        self._removed = False  # whether the log may still have what was removed
        self._count = CommitCount(f"{path.removesuffix('.db')}.commits", boot_id())
        try:
            if not os.path.lexists(path):
                database_file.create(path)
                self._count.forget()
            if os.path.getsize(path) == 0:
                raise self.damaged("it is empty")
            logged = _size(f"{path}-wal") > 0
            self._connect()
            self._upgrade()
            self._check_whole(logged)
        except sqlite3.Error as error:
            raise self._trouble("opened", error) from None
        except OSError as error:
            raise StateError(f"The state in {path!r} could not be opened: {error.strerror}.") from None

    def _connect(self) -> None:
        self._database = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")  # one writer, so no lock is taken for each commit
        self._database.execute(f"PRAGMA journal_mode={'TRUNCATE' if self._network else 'WAL'}")
        self._database.execute(f"PRAGMA synchronous={'FULL' if self._network else 'NORMAL'}")
        self._database.execute(f"PRAGMA journal_size_limit={LOG_KEPT}")
        self._database.execute("PRAGMA secure_delete=ON")  # what is removed is overwritten: there may be secrets in it
        there = os.stat(self._path)
        self._file = (there.st_dev, there.st_ino)
        if not self._network:
            self._pragma("user_version")  # whatever is read makes SQLite open its log
            self._log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)  # now: later none may be left

    def _check_whole(self, logged: bool) -> None:
        """Raise if commits are missing that were acknowledged. `logged`: there was a log with something in it."""
        self._database.executescript(OWN)
        durable, open = self._read("SELECT durable, log FROM own")[0]
        self._commits = Commits(durable, self._read("SELECT max(number) FROM events")[0][0])
        if self._count.missing(self._commits):
            self._refuse("acknowledged commits are missing")
        elif self._count.known is None and open and not logged:
            self._refuse(f"the log that belongs to it, {self._path + '-wal'!r}, is missing or empty")
        self._event = self._commits.event
        if not self._network:
            self._database.execute("UPDATE own SET log = 1")
            self._pragma("wal_checkpoint(FULL)")  # into the file itself, so that a copy of that alone has it too
        self._count.write(self._commits)

    def _refuse(self, why: str) -> None:
        """Unless somebody has said that it is to go on with what is there."""
        accepted = f"{self._path.removesuffix('.db')}.accept-loss"
        try:
            return os.unlink(accepted)
        except OSError:
            raise StateError(
                f"The state in {self._path!r} is not whole: {why}. It may be an old copy, or one without its log.",
                "Restore matching files. To go on without the jobs and leases that came later, end what still "
                f"runs and `touch {accepted}`.",
            ) from None

    def get(self, table: str, key: str) -> Document | None:
        column = "id" if table == "jobs" else "key"
        rows = self._read(f"SELECT body FROM {_known(table)} WHERE {column} = ?", (key,))
        return self._decoded(rows[0][0]) if rows else None

    def _decoded(self, body: str) -> Document:
        try:
            document: Document = json.loads(body)
        except ValueError as error:
            raise self.damaged(str(error)) from None
        return document

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble("read", error) from None

    def jobs(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[Document]:
        where, values = _where(which)
        order = f"ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?"
        rows = self._read(f"SELECT body FROM jobs {where} {order}", (*values, -1 if most is None else most))
        return [self._decoded(body) for (body,) in rows]

    def some_jobs(self, which: Which, most: int) -> tuple[list[Document], bool]:
        where, values = _where(which)
        found: list[Document] = []
        size = 0
        try:
            query = f"SELECT body FROM jobs {where} ORDER BY id LIMIT ?"
            with contextlib.closing(self._database.execute(query, (*values, most))) as rows:
                for (body,) in rows:
                    found.append(self._decoded(body))
                    size += len(body)
                    if size >= SOME:
                        return found, True
        except sqlite3.Error as error:
            raise self._trouble("read", error) from None
        return found, len(found) == most

    def job_rows(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[ListedJob]:
        where, values = _where(which)
        order = "ORDER BY id DESC LIMIT ?" if newest else "ORDER BY id LIMIT ?"
        query = f"SELECT id, state, uid, json_extract(body, '$.exit_code') FROM jobs {where} {order}"
        return [ListedJob(*row) for row in self._read(query, (*values, -1 if most is None else most))]

    def count_jobs(self, which: Which = EVERY) -> dict[tuple[int, str], int]:
        where, values = _where(which)
        rows = self._read(f"SELECT uid, state, count(*) FROM jobs {where} GROUP BY uid, state", values)
        return {(uid, state): number for uid, state, number in rows}

    def forget_environments(self, keys: Iterable[str]) -> dict[str, Document]:
        used = "EXISTS (SELECT 1 FROM jobs WHERE json_extract(body, '$.environment') = environments.key)"
        query = f"SELECT body FROM environments WHERE key = ? AND NOT {used}"
        gone = {key: self._decoded(body) for key in keys for (body,) in self._read(query, (key,))}
        for key in gone:
            self.write("environments", key, None)
        return gone

    def environments_in_use(self, since: float, after: str, most: int) -> dict[str, bool]:
        having = "SELECT 1 FROM jobs WHERE json_extract(body, '$.environment') = key AND json_extract(body, '$.ended')"
        used = f"EXISTS ({having} IS NULL) OR EXISTS ({having} >= ?)"
        rows = self._read(
            f"SELECT key, {used} FROM environments WHERE key > ? ORDER BY key LIMIT ?", (since, after, most)
        )
        return {key: bool(in_use) for key, in_use in rows}

    def load(self, table: str) -> dict[str, Document]:
        column = "id" if table == "jobs" else "key"
        rows = self._read(f"SELECT CAST({column} AS TEXT), body FROM {_known(table)}")
        return {key: self._decoded(body) for key, body in rows}

    def keep(self) -> None:
        try:
            there = os.stat(self._path)
        except OSError:
            return self._put_back()
        if (there.st_dev, there.st_ino) != self._file:
            raise StateError(
                f"The state file {self._path!r} was replaced while the broker ran.",
                "Move that file away, and the broker puts its own back.",
            )
        return None

    def _put_back(self) -> None:
        """All that is known, written to the path again. The file that was removed is still open."""
        fresh = f"{self._path}.new"
        try:
            database_file.remove(fresh)
            self._database.execute("VACUUM INTO ?", (fresh,))
            database_file.move(fresh, self._path)
            self._disconnect()
            self._connect()
            self._count.close()  # the file that was removed with it
            self._count.write(self._commits)
        except (sqlite3.Error, OSError) as error:
            raise StateError(
                f"The state file {self._path!r} was removed while the broker ran, and cannot be put back: "
                f"{in_words(error)}.",
                "Make room, and the folder writable for the broker's user. Until then nothing is granted.",
            ) from None

    def write(self, table: str, key: str, document: Document | None) -> None:
        if document is None:
            self._execute(DROP[table], (key,))
            self._removed = self._removed or table in ("jobs", "environments")
        else:
            self._execute(PUT[table], _row(table, key, document))

    def append(self, record: HistoryEvent) -> None:
        time, what, fields = record
        insert = "INSERT INTO events (time, what, body) VALUES (?, ?, ?)"
        self._event = self._execute(insert, (time, what, _encode(fields))).lastrowid

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            if not self._open:
                self.keep()
                self._database.execute("BEGIN IMMEDIATE")
                self._open = True
            return self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None

    def commit(self, durable: bool = False) -> bool:
        if not self._open:
            return False
        try:
            after = Commits(self._commits.durable + durable, self._event)
            if durable:
                self._database.execute("UPDATE own SET durable = ?", (after.durable,))
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None
        self._open = False
        if durable:
            self._force()
        if after != self._commits:
            self._count.write(after)
            self._commits = after
        return True

    def _force(self) -> None:
        """What NORMAL leaves out. An error ends the broker: the next one reads what is on disk."""
        if self._log is None:
            return  # on a network, where FULL has done it
        try:
            os.fsync(self._log)
        except OSError as error:
            raise SystemExit(f"gpulease: {self._path!r} could not be forced to the disk: {error.strerror}.") from None

    def rollback(self) -> None:
        self._open, self._event = False, self._commits.event
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def event_numbers(self, since: float, most: int) -> list[int]:
        rows = self._read("SELECT number FROM events WHERE time >= ? ORDER BY number DESC LIMIT ?", (since, most))
        return [number for (number,) in reversed(rows)]

    def event(self, number: int) -> HistoryEvent | None:
        rows = self._read("SELECT time, what, body FROM events WHERE number = ?", (number,))
        return HistoryEvent(rows[0][0], rows[0][1], self._decoded(rows[0][2])) if rows else None

    def jobs_ended(self, before: float, most: int) -> list[Document]:
        ended, states = "json_extract(body, '$.ended')", ", ".join("?" * len(ENDS))
        query = f"SELECT body FROM jobs WHERE {ended} < ? AND state IN ({states}) ORDER BY {ended} LIMIT ?"
        return [self._decoded(body) for (body,) in self._read(query, (before, *ENDS, most))]

    def forget_events(self, before: float, kept: int, most: int) -> int:
        oldest = "SELECT number, time FROM events ORDER BY number LIMIT ?"
        beyond = "number <= (SELECT max(number) FROM events) - ?"
        old = self._read(f"SELECT number FROM ({oldest}) WHERE {beyond} OR time < ?", (most, kept, before))
        for (number,) in old:
            self._execute("DELETE FROM events WHERE number = ?", (number,))
        if old:
            self._event = self._read("SELECT max(number) FROM events")[0][0]  # the newest may be among them
        return len(old)

    def freeze(self) -> str:
        """What is committed goes to the log alone meanwhile."""
        if self._network:
            step = "Stop the broker, copy the file, and start it again."
            raise StateError("The state is on a network file system, where it cannot be copied in use.", step)
        try:
            if self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise StateError("The state is in use at the moment.", "Try again.")
            self._database.execute("PRAGMA wal_autocheckpoint=0")
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None
        self._held = True
        return self._path

    def unfreeze(self) -> None:
        self._database.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT}")
        self._held = False

    def shrink(self) -> None:
        """Give a little of what is free in the file back to the disk, and empty the log of what was removed.

        It is tried again, so errors are not reported.
        """
        if self._open or self._held:
            return
        with contextlib.suppress(sqlite3.Error):
            if self._removed:
                busy = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
                self._removed = bool(busy)
            if self._pragma("freelist_count") > SPARE:
                # As a script: of a statement without columns `execute` does only the first page.
                self._database.executescript(f"PRAGMA incremental_vacuum({STEP}); PRAGMA wal_checkpoint;")

    def _pragma(self, name: str) -> int:
        value: int = self._database.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):  # a full disk: the file beside it tells enough
            self.rollback()
            self._database.execute("UPDATE own SET log = 0")
        self._disconnect()
        self._count.close()

    def _disconnect(self) -> None:
        if self._log is not None:
            os.close(self._log)
            self._log = None
        self._database.close()

    def _upgrade(self) -> None:
        """Bring an older state to this version, one step at a time, each whole or not at all."""
        present = self._pragma("user_version")
        steps = database_file.steps()
        if not 0 <= present <= NEWEST:
            raise self.damaged(f"its version is {present}")
        if present > max(steps):
            raise StateError(
                f"The state in {self._path!r} was written by a newer gpulease (version {present}, known {max(steps)}).",
                "Use that gpulease again, or set GPULEASE_DIR to another folder.",
            )
        if 0 < present < min(steps):
            raise StateError(
                f"The state in {self._path!r} was written before gpulease 0.1.0 (version {present}).",
                "Move the file away, after you end what still runs. The next broker starts without leases and jobs.",
            )
        database_file.upgrade(self._database, present)

    def _trouble(self, what: str, error: sqlite3.Error) -> StateError:
        code = getattr(error, "sqlite_errorcode", 0)
        short = code == sqlite3.SQLITE_IOERR_SHORT_READ
        if code & 0xFF in DAMAGED or short or any(words in str(error) for words in ALSO_DAMAGED):
            return self.damaged(str(error))
        return StateError(f"The state in {self._path!r} could not be {what}: {error}.")

    def damaged(self, why: str) -> StateError:
        return StateError(
            f"The state in {self._path!r} is damaged: {why}.",
            "Move the file away, after you end what still runs. The next broker starts without leases and jobs.",
        )


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _where(which: Which) -> tuple[str, list[object]]:
    """As SQL, and the values for its question marks."""
    states, uid, label, ids = which
    rules: list[str] = []
    values: list[object] = []
    if states:
        rules.append(f"state IN ({', '.join('?' * len(states))})")
        values += states
    for column, value in (("uid", uid), ("label", label)):
        if value is not None:
            rules.append(f"{column} = ?")
            values.append(value)
    if ids:
        rules.append(" OR ".join(["id BETWEEN ? AND ?"] * len(ids)))
        values += [end for pair in ids for end in pair]
    return f"WHERE {' AND '.join(f'({rule})' for rule in rules)}" if rules else "", values


def _row(table: str, key: str, document: Document) -> tuple[object, ...]:
    if table == "jobs":
        return (int(key), document["state"], document["uid"], document["label"], _encode(document))
    return (key, _encode(document))


def _known(table: str) -> str:
    if table not in TABLES:
        raise ValueError(table)
    return table
