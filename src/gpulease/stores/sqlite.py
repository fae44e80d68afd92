"""The broker's state in SQLite, write-ahead log, one writer.

A commit survives the death of any process. With `durable` it is also forced to the disk, for what must survive a
power cut: a lease of a process need not, since after a reboot that process is gone.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpulease.errors import StateError
from gpulease.stores.base import TABLES, Document, HistoryEvent

_encode = json.JSONEncoder(separators=(",", ":")).encode
PUT: dict[str, str] = {table: f"INSERT OR REPLACE INTO {table} VALUES (?, ?)" for table in TABLES}
DROP: dict[str, str] = {table: f"DELETE FROM {table} WHERE key = ?" for table in TABLES}

DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)

PUT["jobs"] = "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?)"
DROP["jobs"] = "DELETE FROM jobs WHERE id = ?"


class SqliteStore:
    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
            self._database.execute("PRAGMA locking_mode=EXCLUSIVE")  # one writer, so no lock is taken for each commit
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._log: int | None = None  # the write-ahead log, opened when it must first be forced to the disk
            self._open = False  # whether something was written since the last commit
            self._upgrade()
            there = os.stat(path)
            self._file = (there.st_dev, there.st_ino)
        except sqlite3.Error as error:
            raise self._trouble("opened", error) from None

    def get(self, table: str, key: str) -> Document | None:
        column = "id" if table == "jobs" else "key"
        rows = self._read(f"SELECT body FROM {_known(table)} WHERE {column} = ?", (key,))
        document: Document | None = json.loads(rows[0][0]) if rows else None
        return document

    def _read(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble("read", error) from None

    def jobs(
        self,
        states: Sequence[str] = (),
        uid: int | None = None,
        label: str | None = None,
        ids: Sequence[tuple[int, int]] = (),
        most: int | None = None,
        newest: bool = False,
    ) -> list[Document]:
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
        where = f"WHERE {' AND '.join(f'({rule})' for rule in rules)}" if rules else ""
        order = f"ORDER BY id {'DESC' if newest else 'ASC'} LIMIT ?"
        rows = self._read(f"SELECT body FROM jobs {where} {order}", (*values, -1 if most is None else most))
        return [json.loads(body) for (body,) in rows]

    def count_jobs(self) -> dict[str, int]:
        return dict(self._read("SELECT state, count(*) FROM jobs GROUP BY state"))

    def forget_environments(self) -> None:
        used = "SELECT json_extract(body, '$.environment') FROM jobs"
        self._execute(f"DELETE FROM environments WHERE key NOT IN ({used})")

    def load(self, table: str) -> dict[str, Document]:
        column = "id" if table == "jobs" else "key"
        rows = self._read(f"SELECT CAST({column} AS TEXT), body FROM {_known(table)}")
        return {key: json.loads(body) for key, body in rows}

    def _check_file(self) -> None:
        """What is written to a file that was removed is not on disk."""
        try:
            there = os.stat(self._path)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != self._file:
            raise StateError(
                f"The state file {self._path!r} was removed or replaced while the broker ran.",
                "End what still runs, then the broker with `gpulease stop`; the next one begins anew.",
            )

    def write(self, table: str, key: str, document: Document | None) -> None:
        if document is None:
            self._execute(DROP[table], (key,))
        else:
            self._execute(PUT[table], _row(table, key, document))

    def append(self, record: HistoryEvent) -> None:
        time, what, fields = record
        self._execute("INSERT INTO events (time, what, body) VALUES (?, ?, ?)", (time, what, _encode(fields)))

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        try:
            if not self._open:
                self._check_file()
                self._database.execute("BEGIN IMMEDIATE")
                self._open = True
            self._database.execute(statement, values)
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None

    def commit(self, durable: bool = False) -> None:
        if not self._open:
            return
        try:
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None
        self._open = False
        if durable:
            self._force()

    def _force(self) -> None:
        """What NORMAL leaves out. An error ends the broker: nobody knows what is on disk, and the next one looks."""
        try:
            if self._log is None:
                self._log = os.open(f"{self._path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(self._log)
        except OSError as error:
            raise SystemExit(f"gpulease: {self._path!r} could not be forced to the disk: {error.strerror}.") from None

    def rollback(self) -> None:
        self._open = False
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

    def events(self, since: float, most: int) -> list[HistoryEvent]:
        query = "SELECT time, what, body FROM events WHERE time >= ? ORDER BY number DESC LIMIT ?"
        rows = self._read(query, (since, most))
        return [HistoryEvent(time, what, json.loads(body)) for time, what, body in reversed(rows)]

    def forget_events(self, before: float) -> None:
        self._execute("DELETE FROM events WHERE time < ?", (before,))

    def close(self) -> None:
        if self._log is not None:
            os.close(self._log)
        self._database.close()

    def _upgrade(self) -> None:
        """Bring an older state to this version, one step at a time, each whole or not at all."""
        present = self._database.execute("PRAGMA user_version").fetchone()[0]
        steps = _steps()
        if present > len(steps):
            raise StateError(
                f"The state in {self._path!r} was written by a newer gpulease (version {present}, known {len(steps)}).",
                "Use that gpulease again, or set GPULEASE_DIR to another folder.",
            )
        for number in range(present, len(steps)):
            self._database.executescript(f"BEGIN;{steps[number]};PRAGMA user_version={number + 1};COMMIT;")

    def _trouble(self, what: str, error: sqlite3.Error) -> StateError:
        if getattr(error, "sqlite_errorcode", None) in DAMAGED:
            return StateError(
                f"The state in {self._path!r} is damaged: {error}.",
                "Move the file away, and the next broker begins anew: no lease, no queue. End first what still runs.",
            )
        return StateError(f"The state in {self._path!r} could not be {what}: {error}.")


def _row(table: str, key: str, document: Document) -> tuple[object, ...]:
    if table == "jobs":
        return (int(key), document["state"], document["uid"], document["label"], _encode(document))
    return (key, _encode(document))


def _steps() -> list[str]:
    text = Path(__file__).with_name("schema.sql").read_text()
    return [part.split("\n", 1)[1] for part in text.split("-- Version ")[1:]]


def _known(table: str) -> str:
    if table not in TABLES:
        raise ValueError(table)
    return table
