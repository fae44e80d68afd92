"""The history in a file of its own, beside the state: spans by minute, ten minutes and hour, each kept for its time.

Each minute is added to all three at once, so there is nothing to make shorter later, and a question about a month reads
hours only. Not acknowledged state: a file that is damaged is put aside and another one begun.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpulease.model.spans import KEPT, Activity, Count, Counted, DeviceName, Row, Span, SpanHolder, SpanUse, counted

VERSION = 1
# A table for each step: what is appended to the end of a table fills its pages.
TIERS = "".join(
    f"""
CREATE TABLE spans_{step} (time INTEGER, device INTEGER, {", ".join(Activity._fields)},
  PRIMARY KEY (time, device)) WITHOUT ROWID;
CREATE TABLE uses_{step} (time INTEGER, device INTEGER, holder INTEGER, {", ".join(SpanUse._fields)},
  PRIMARY KEY (time, device, holder)) WITHOUT ROWID;
CREATE TABLE counts_{step} (time INTEGER, holder INTEGER, devices TEXT, {", ".join(Count._fields)},
  PRIMARY KEY (time, holder, devices)) WITHOUT ROWID;
"""
    for step in KEPT
)
SCHEMA = f"""
CREATE TABLE devices (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, label TEXT NOT NULL, name TEXT NOT NULL);
CREATE TABLE holders (id INTEGER PRIMARY KEY, user TEXT NOT NULL, groups TEXT NOT NULL, label TEXT, outside INTEGER);
{TIERS}CREATE TABLE known (until INTEGER NOT NULL);
INSERT INTO known VALUES (0);
CREATE TABLE totals (name TEXT PRIMARY KEY, amount INTEGER NOT NULL) WITHOUT ROWID;
PRAGMA user_version={VERSION};
"""
HOUR = max(KEPT)
TABLES = ("spans", "uses", "counts")

Minute = Mapping[str, Span]  # by UUID
CountedRow = tuple[int, SpanHolder, tuple[str, ...], Count]


class HistoryFile:
    """Raises sqlite3.Error and OSError; after that nothing of what was to be written is there."""

    def __init__(self, path: str, network: bool = False) -> None:
        if os.path.islink(path):
            raise OSError(f"{path} is a symbolic link")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._database = sqlite3.connect(path, timeout=0, isolation_level=None)  # nobody waits for it
        try:
            self._set_up(network)
        except BaseException:
            self._database.close()
            raise

    def _set_up(self, network: bool) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode=EXCLUSIVE")
        execute("PRAGMA cache_size=-512")
        execute("PRAGMA synchronous=NORMAL")
        execute(f"PRAGMA journal_mode={'TRUNCATE' if network else 'WAL'}")
        version = execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._database.executescript(f"BEGIN;{SCHEMA}COMMIT;")
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"its version is {version}")
        self._read_names()

    def _read_names(self) -> None:
        """The two small tables are at hand in memory."""
        devices = self._database.execute("SELECT id, uuid, label, name FROM devices").fetchall()
        self._devices: dict[str, int] = {uuid: id for id, uuid, _, _ in devices}
        self.places = {uuid: DeviceName(uuid, label, name) for _, uuid, label, name in devices}
        rows = self._database.execute("SELECT id, user, groups, label, outside FROM holders")
        self._holders = {
            id: SpanHolder(user, tuple(groups.split(",")) if groups else (), label, bool(outside))
            for id, user, groups, label, outside in rows
        }
        self._numbers: dict[SpanHolder, int] = {holder: id for id, holder in self._holders.items()}

    def close(self) -> None:
        self._database.close()

    # ---------------------------------------------------------------- writing

    def write(
        self,
        minutes: Mapping[int, Minute],
        counts: Mapping[int, Mapping[Counted, Count]],
        places: Iterable[DeviceName],
        until: int,
        totals: Mapping[str, int] | None = None,
    ) -> None:
        """What was measured in minutes that begin at these seconds, up to a millisecond; and what that adds to sums."""
        try:
            with self._transaction():
                self._name(places)
                for time, minute in minutes.items():
                    for uuid, span in minute.items():
                        for step in KEPT:
                            self._add_span(step, time // step * step, uuid, span)
                for time, found in counts.items():
                    for step in KEPT:
                        self._add_counts(step, time // step * step, found)
                self._database.execute("UPDATE known SET until = ?", (until,))
                more = "ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount"
                self._database.executemany(f"INSERT INTO totals VALUES (?, ?) {more}", (totals or {}).items())
        except BaseException:
            self._read_names()
            raise

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    def _name(self, places: Iterable[DeviceName]) -> None:
        upsert = "INSERT INTO devices (uuid, label, name) VALUES (?, ?, ?) ON CONFLICT (uuid) DO UPDATE"
        for place in places:
            if self.places.get(place.uuid) != place:
                query = f"{upsert} SET label = excluded.label, name = excluded.name RETURNING id"
                self._devices[place.uuid] = self._database.execute(query, place).fetchone()[0]
                self.places[place.uuid] = place

    def _device(self, uuid: str) -> int:
        if uuid not in self._devices:
            self._name([DeviceName(uuid, uuid, "")])
        return self._devices[uuid]

    def _holder(self, holder: SpanHolder) -> int:
        if holder not in self._numbers:
            values = (holder.user, ",".join(holder.groups), holder.label, holder.outside)
            query = "INSERT INTO holders (user, groups, label, outside) VALUES (?, ?, ?, ?)"
            id = self._database.execute(query, values).lastrowid or 0
            self._holders[id], self._numbers[holder] = holder, id
        return self._numbers[holder]

    def _add_span(self, step: int, time: int, uuid: str, span: Span) -> None:
        device = self._device(uuid)
        before = self._one(step, time, device)
        after = before.plus(span)
        self._put(f"spans_{step}", (time, device), after.seen)
        for holder, use in after.uses.items():
            if before.uses.get(holder) != use:
                self._put(f"uses_{step}", (time, device, self._holder(holder)), use)

    def _one(self, step: int, time: int, device: int) -> Span:
        where = "WHERE time = ? AND device = ?"
        seen = f"SELECT {', '.join(Activity._fields)} FROM spans_{step} {where}"
        uses = f"SELECT holder, {', '.join(SpanUse._fields)} FROM uses_{step} {where}"
        found = self._database.execute(seen, (time, device)).fetchone()
        held = self._database.execute(uses, (time, device)).fetchall()
        return Span(Activity(*found or ()), {self._holders[holder]: SpanUse(*use) for holder, *use in held})

    def _add_counts(self, step: int, time: int, found: Mapping[Counted, Count]) -> None:
        rows, _ = self.read_counts(step, time, time + 1)
        before = {(holder, devices): count for _, holder, devices, count in rows}
        for (holder, devices), count in counted(before, found).items():
            if before.get((holder, devices)) != count:
                self._put(f"counts_{step}", (time, self._holder(holder), ",".join(devices)), count)

    def _put(self, table: str, key: tuple[Any, ...], values: tuple[Any, ...]) -> None:
        row = (*key, *values)
        self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def forget(self, now: float) -> None:
        """What is older than it is kept."""
        with self._transaction():
            for step, age in KEPT.items():
                for table in TABLES:
                    self._database.execute(f"DELETE FROM {table}_{step} WHERE time < ?", (now - age - step,))

    def forget_holders(self) -> None:
        """Those of whom nothing is kept any more: an hour is kept for longest."""
        named = " UNION ".join(f"SELECT holder FROM {table}_{HOUR}" for table in ("uses", "counts"))
        with self._transaction():
            self._database.execute(f"DELETE FROM holders WHERE id NOT IN ({named})")
        self._read_names()

    # ---------------------------------------------------------------- reading

    def known_until(self) -> int:
        """Up to which millisecond it was written who held what; 0: never."""
        return int(self._database.execute("SELECT until FROM known").fetchone()[0])

    def totals(self) -> dict[str, int]:
        return dict(self._database.execute("SELECT name, amount FROM totals").fetchall())

    def read(self, step: int, since: int, until: int, most: int = -1) -> tuple[list[Row], int | None]:
        """In order of time. If there are more than `most`: up to a moment before that, and that moment."""
        seen, rest = self._some(f"spans_{step}", ("device", *Activity._fields), (since, until), most)
        held, sooner = self._some(f"uses_{step}", ("device", "holder", *SpanUse._fields), (since, until), most)
        rest = min((end for end in (rest, sooner) if end is not None), default=None)
        uses: dict[tuple[int, int], dict[SpanHolder, SpanUse]] = {}
        for time, device, holder, *use in held:
            uses.setdefault((time, device), {})[self._holders[holder]] = SpanUse(*use)
        names = {id: uuid for uuid, id in self._devices.items()}
        rows = [
            (time, names[device], Span(Activity(*one), uses.get((time, device), {})))
            for time, device, *one in seen
            if rest is None or time < rest
        ]
        return rows, rest

    def read_counts(self, step: int, since: int, until: int, most: int = -1) -> tuple[list[CountedRow], int | None]:
        """The same, of what was counted."""
        rows, rest = self._some(f"counts_{step}", ("holder", "devices", *Count._fields), (since, until), most)
        found = [
            (time, self._holders[holder], tuple(devices.split(",")) if devices else (), Count(*count))
            for time, holder, devices, *count in rows
            if rest is None or time < rest
        ]
        return found, rest

    def _some(
        self, table: str, columns: Iterable[str], between: tuple[int, int], most: int
    ) -> tuple[list[Any], int | None]:
        """At most this many, and then the last moment of them: there may be more of it."""
        where = "WHERE time >= ? AND time < ? ORDER BY time LIMIT ?"
        query = f"SELECT time, {', '.join(columns)} FROM {table} {where}"
        rows = self._database.execute(query, (*between, most)).fetchall()
        return rows, rows[-1][0] if len(rows) == most else None
