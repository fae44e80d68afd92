"""The broker's state in SQLite, write-ahead log, one writer.

A commit survives the death of any process. With `durable` it is also forced to the disk, for what must survive a
power cut: a lease of a process need not, since after a reboot that process is gone.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpulease.errors import StateError
from gpulease.stores.base import TABLES, Change, Document, Event

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
            self._durable = False
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._upgrade()
            there = os.stat(path)
            self._file = (there.st_dev, there.st_ino)
        except sqlite3.Error as error:
            raise self._trouble("opened", error) from None

    def get(self, table: str, key: str) -> Document | None:
        column = "id" if table == "jobs" else "key"
        row = self._database.execute(f"SELECT body FROM {_known(table)} WHERE {column} = ?", (key,)).fetchone()
        document: Document | None = None if row is None else json.loads(row[0])
        return document

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
        rows = self._database.execute(f"SELECT body FROM jobs {where} {order}", (*values, -1 if most is None else most))
        return [json.loads(body) for (body,) in rows]

    def count_jobs(self) -> dict[str, int]:
        return dict(self._database.execute("SELECT state, count(*) FROM jobs GROUP BY state"))

    def forget_environments(self) -> None:
        used = "SELECT json_extract(body, '$.environment') FROM jobs"
        try:
            self._database.execute(f"DELETE FROM environments WHERE key NOT IN ({used})")
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None

    def load(self, table: str) -> dict[str, Document]:
        column = "id" if table == "jobs" else "key"
        rows = self._database.execute(f"SELECT CAST({column} AS TEXT), body FROM {_known(table)}")
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

    def commit(self, changes: Iterable[Change], events: Iterable[Event] = (), durable: bool = False) -> None:
        execute = self._database.execute
        self._check_file()
        try:
            if durable is not self._durable:
                execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                self._durable = durable
            execute("BEGIN IMMEDIATE")
            for table, key, document in changes:
                if document is None:
                    execute(DROP[table], (key,))
                else:
                    execute(PUT[table], _row(table, key, document))
            for time, what, fields in events:
                execute("INSERT INTO events (time, what, body) VALUES (?, ?, ?)", (time, what, _encode(fields)))
            execute("COMMIT")
        except sqlite3.Error as error:
            self._undo()
            raise self._trouble("written", error) from None
        except BaseException:
            self._undo()  # else every later commit would fail inside this one
            raise

    def events(self, since: float, most: int) -> list[Event]:
        query = "SELECT time, what, body FROM events WHERE time >= ? ORDER BY number DESC LIMIT ?"
        rows = self._database.execute(query, (since, most)).fetchall()
        return [Event(time, what, json.loads(body)) for time, what, body in reversed(rows)]

    def forget_events(self, before: float) -> None:
        try:
            self._database.execute("DELETE FROM events WHERE time < ?", (before,))
        except sqlite3.Error as error:
            raise self._trouble("written", error) from None

    def close(self) -> None:
        self._database.close()

    def _undo(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")

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
