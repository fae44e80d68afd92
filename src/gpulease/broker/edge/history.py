"""The history at the edge: adds up what the core tells of leases and samples, keeps it in a file, and reads it again.

It decides nothing, and nothing depends on it: if a write fails, the data is kept for a while and tried again, and a
file that is damaged is put aside and another one begun.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from time import localtime, strftime
from typing import TypeVar

from gpulease.broker.core import instructions
from gpulease.broker.edge.minutes import MINUTE, Measured, Minutes
from gpulease.broker.store.history import CountedRow, HistoryFile
from gpulease.errors import HistoryError, in_words
from gpulease.model.spans import (
    Asked,
    Count,
    Counted,
    DeviceName,
    Row,
    Span,
    SpanHolder,
    SpanUse,
    count_in,
    in_order,
    joined,
)
from gpulease.model.store import Document
from gpulease.protocol.messages import CountRow, HistoryRow, HolderRow, Message, UseRow
from gpulease.render import metrics

ROWS = 1000  # of one kind that are read from the file for one answer
ALL = -1
UNWRITTEN = 120  # minutes that are kept in memory while nothing can be written
FOUND = 86400_000  # milliseconds before now for which a lease that was found again is taken to have been held
DAY = 86400_000
TEMPORARY = {
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_PERM,
}  # fmt: skip  # what may be better in a minute; all else is damage

Answer = TypeVar("Answer")
Found = TypeVar("Found", Row, CountedRow)


class History:
    def __init__(self, path: str, network: bool, log: Callable[[str], None]) -> None:
        self._path, self._network, self._log = path, network, log
        self._file: HistoryFile | None = None
        self._minutes = Minutes()
        self._places: dict[str, DeviceName] = {}
        self._waits: metrics.Amounts = {}  # of grants that are not written yet
        self._written = self._tidied = 0  # up to which minute, and on which day
        self._trouble = ""
        if os.path.isfile(path) and not os.path.getsize(path):
            self._put_aside(ValueError("it is empty"))

    # ---------------------------------------------------------------- what the core tells

    def lease_started(self, one: instructions.LeaseStarted) -> None:
        lease, at = one.lease, _milliseconds(one.time)
        holder = SpanHolder(lease.owner.user, lease.owner.groups, one.label)
        for place in one.places:
            if place.name or place.uuid not in self._places:
                self._places[place.uuid] = place
        if one.waited is None:
            known = self._with_file(HistoryFile.known_until)
            at = at if known is None else max(_milliseconds(one.since), at - FOUND, known)
        else:
            labels = tuple(place.label for place in one.places)
            self._minutes.count(holder, labels, Count(1, _milliseconds(one.waited)), at)
            metrics.add(self._waits, metrics.of_wait(_milliseconds(one.waited)))
        self._minutes.lease_started(lease.id, lease.devices, holder, at)

    def lease_ended(self, one: instructions.LeaseEnded) -> None:
        self._minutes.lease_ended(one.id, _milliseconds(one.time))

    def job_ended(self, one: instructions.JobEnded) -> None:
        holder = SpanHolder(one.user, one.groups, one.label)
        self._minutes.count(holder, one.devices, Count()._replace(**{one.how: 1}), _milliseconds(one.time))

    def devices_sampled(self, one: instructions.DevicesSampled) -> None:
        self._places |= {device.uuid: DeviceName(device.uuid, device.label, device.name) for device in one.devices}
        readings = {
            device.uuid: Measured(device.utilization, device.memory_used, device.power)
            for device in one.devices
            if device.lost is None
        }
        outside = {uuid: [SpanHolder(user, outside=True) for user in users] for uuid, users in one.outside.items()}
        self._minutes.devices_sampled(readings, outside, _milliseconds(one.time))

    # ---------------------------------------------------------------- writing

    def keep(self, now: float, whole: bool = False) -> None:
        """Write the minutes that have passed; when the broker ends, the one that has not, too."""
        at = _milliseconds(now)
        minute = at // MINUTE
        if minute == self._written and not whole:
            return
        self._written = minute
        if not os.path.exists(self._path):
            self._close_file()  # somebody removed it: start another, and do not write what nobody can find
        self._minutes.add_up(at)
        until = at + 1 if whole else minute * MINUTE
        spans, counts = self._minutes.take(until)
        rows: dict[int, dict[str, Span]] = {}
        for (begin, uuid), span in spans.items():
            rows.setdefault(begin // 1000, {})[uuid] = span
        found = {begin // 1000: one for begin, one in counts.items()}
        if (rows or found) and self._with_file(lambda file: self._write(file, rows, found, until)) is None:
            self._minutes.put_back(spans, counts, at - UNWRITTEN * MINUTE)

    def _write(
        self, file: HistoryFile, rows: dict[int, dict[str, Span]], counts: dict[int, dict[Counted, Count]], until: int
    ) -> bool:
        """What could fail comes before: what was written must not be put back and be written again."""
        file.forget(until // 1000)
        if until // DAY != self._tidied:
            file.forget_holders()
            self._tidied = until // DAY
        sums = metrics.of_spans(span for minute in rows.values() for span in minute.values())
        metrics.add(sums, self._waits)
        file.write(rows, counts, self._places.values(), until, sums)
        self._waits = {}
        self._trouble = ""
        return True

    def close(self, now: float) -> None:
        self.keep(now, whole=True)
        self._close_file()

    # ---------------------------------------------------------------- reading

    def answer(self, one: instructions.AnswerHistory) -> Message:
        if one.question is None:
            return dict(metrics.shown(self._read(HistoryFile.totals), one.user))
        read = self._usage if one.verb == "usage" else self._history
        return read(one.question, one.now, one.user)

    def _history(self, question: Asked, now: float, user: str | None) -> Message:
        rows, next = self._rows(question, now)
        return {**about_answer(question, now, next), "rows": history_rows(rows, self._known_places())}

    def _usage(self, question: Asked, now: float, user: str | None) -> Message:
        counts, end = self._read(lambda file: _whole_steps(file.read_counts, question))
        rows, next = self._rows(question if end is None else question._replace(until=end), now)
        next = end if next is None else next
        counts = self._counts(counts, question._replace(until=question.until if next is None else next))
        return {
            **about_answer(question, now, next),
            "everybody": user is None,
            "rows": use_rows(rows, self._known_places(), user),
            "counts": count_rows(counts, user),
            "note": self._lost(),
        }

    def _lost(self) -> str | None:
        """What is missing because a damaged file was set aside; until somebody removes that."""
        try:
            until = os.stat(f"{self._path}.damaged").st_mtime
        except OSError:
            return None
        day = strftime("%Y-%m-%d %H:%M", localtime(until))
        return f"The history up to {day} was damaged and is not counted. It was set aside as {self._path}.damaged."

    def _known_places(self) -> dict[str, DeviceName]:
        return {**({} if self._file is None else self._file.places), **self._places}

    def _rows(self, question: Asked, now: float) -> tuple[list[Row], int | None]:
        """From the file, and of what has not been written yet; and where the next answer begins."""
        self._minutes.add_up(_milliseconds(now))
        rows, next = self._read(lambda file: _whole_steps(file.read, question))
        end = question.until if next is None else next
        fresh = [(begin // 1000, uuid, span) for (begin, uuid), span in self._minutes.spans.items()]
        return joined(rows + [row for row in fresh if question.since <= row[0] < end], question.step), next

    def _counts(self, rows: list[CountedRow], question: Asked) -> list[CountedRow]:
        """With what has not been written yet, in whole steps."""
        for begin, counts in self._minutes.counts.items():
            rows = rows + [(begin // 1000, *whose, count) for whose, count in counts.items()]
        found: dict[int, dict[Counted, Count]] = {}
        for time, holder, devices, count in rows:
            if question.since <= time < question.until:
                begin = time // question.step * question.step
                count_in(found.setdefault(begin, {}), (holder, devices), count)
        return [(time, *whose, count) for time, counts in sorted(found.items()) for whose, count in counts.items()]

    # ---------------------------------------------------------------- the file

    def _read(self, action: Callable[[HistoryFile], Answer]) -> Answer:
        answer = self._with_file(action)
        if answer is None:
            raise HistoryError(f"The history cannot be read: {self._trouble}.")
        return answer

    def _with_file(self, action: Callable[[HistoryFile], Answer]) -> Answer | None:
        """None when it cannot be done, which is logged once. A damaged file is put aside for a new one."""
        for again in (False, True):
            try:
                self._file = self._file or HistoryFile(self._path, self._network)
                return action(self._file)
            except (OSError, sqlite3.Error, LookupError, TypeError, ValueError) as trouble:
                self._close_file()
                if again or _is_temporary(trouble) or not self._put_aside(trouble):
                    self._complain(in_words(trouble))
                    break
        return None

    def _put_aside(self, trouble: Exception) -> bool:
        aside = f"{self._path}.damaged"
        try:
            for ending in ("-wal", "-shm", "-journal"):
                if os.path.lexists(self._path + ending):
                    os.unlink(self._path + ending)
            os.replace(self._path, aside)
        except OSError:
            return False
        self._log(f"the history was damaged ({trouble}) and starts empty again; the damaged file is {aside}")
        return True

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._log(f"the history cannot be read or written now: {trouble}")
        self._trouble = trouble


def _whole_steps(
    read: Callable[[int, int, int, int], tuple[list[Found], int | None]], question: Asked
) -> tuple[list[Found], int | None]:
    """As many as are read in a moment; and where the next begins."""
    since, until, step, kept = question
    rows, rest = read(kept, since, until, ROWS)
    if rest is None:
        return rows, None
    end = max(since + step, rest // step * step)
    if end > rest:
        rows, _ = read(kept, since, end, ALL)
    return [row for row in rows if row[0] < end], end if end < until else None


def _is_temporary(trouble: Exception) -> bool:
    code = getattr(trouble, "sqlite_errorcode", 0)
    short = code == sqlite3.SQLITE_IOERR_SHORT_READ  # the file is: it was cut
    return isinstance(trouble, OSError) or (code & 0xFF in TEMPORARY and not short)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


# -------------------------------------------------------------------- rows for clients


MIB = 1 << 20
ENDS = ("complete", "failed", "out_of_memory", "killed", "lost", "invalid")


def about_answer(question: Asked, now: float, next: int | None) -> Document:
    since, until, step, _ = question
    return {
        "since": float(since),
        "until": min(float(until), now),
        "step": step,
        "now": now,
        "next": next and float(next),
    }


def history_rows(rows: Iterable[Row], places: Mapping[str, DeviceName]) -> list[HistoryRow]:
    return [_history_row(time, _place(uuid, places), span) for time, uuid, span in _in_order(rows, places)]


def use_rows(rows: Iterable[Row], places: Mapping[str, DeviceName], user: str | None) -> list[UseRow]:
    """Of one user; None: of all."""
    return [
        _use_row(time, _place(uuid, places), holder, use)
        for time, uuid, span in _in_order(rows, places)
        for holder, use in span.uses.items()
        if user in (None, holder.user)
    ]


def count_rows(counts: Iterable[CountedRow], user: str | None) -> list[CountRow]:
    return [_count_row(*one) for one in counts if user in (None, one[1].user)]


def _place(uuid: str, places: Mapping[str, DeviceName]) -> DeviceName:
    return places.get(uuid) or DeviceName(uuid, uuid, "")


def _in_order(rows: Iterable[Row], places: Mapping[str, DeviceName]) -> list[Row]:
    return sorted(rows, key=lambda row: (row[0], in_order(_place(row[1], places).label), row[1]))


def _history_row(time: int, place: DeviceName, span: Span) -> HistoryRow:
    seen = span.seen
    holders = sorted(span.uses.items(), key=lambda one: (one[0].outside, -one[1].held, one[0].user))
    return {
        "time": float(time),
        "device": place.label,
        "uuid": place.uuid,
        "name": place.name,
        "watched": seen.watched / 1000,
        "known": seen.known / 1000,
        "busy": seen.busy / 1000,
        "idle": seen.idle / 1000,
        "utilization": round(100 * seen.busy / seen.known, 1) if seen.known else None,
        "memory": None if seen.memory is None else seen.memory * MIB,
        "memory_most": None if seen.memory_most is None else seen.memory_most * MIB,
        "power": seen.power,
        "held": sum(use.held for holder, use in holders if not holder.outside) / 1000,
        "holders": [_holder_row(*one) for one in _without_groups(holders)],
    }


def _without_groups(holders: Iterable[tuple[SpanHolder, SpanUse]]) -> list[tuple[SpanHolder, SpanUse]]:
    """A user whose groups changed meanwhile is one user."""
    found: dict[SpanHolder, SpanUse] = {}
    for holder, use in holders:
        one = holder._replace(groups=())
        found[one] = found[one].plus(use) if one in found else use
    return list(found.items())


def _holder_row(holder: SpanHolder, use: SpanUse) -> HolderRow:
    return {
        "user": holder.user,
        "label": holder.label,
        "outside": holder.outside,
        "held": use.held / 1000,
        "known": use.known / 1000,
        "busy": use.busy / 1000,
        "idle": use.idle / 1000,
    }


def _use_row(time: int, place: DeviceName, holder: SpanHolder, use: SpanUse) -> UseRow:
    return {"time": float(time), "device": place.label, "groups": list(holder.groups), **_holder_row(holder, use)}


def _count_row(time: int, holder: SpanHolder, devices: tuple[str, ...], count: Count) -> CountRow:
    return {
        "time": float(time),
        "devices": list(devices),
        "user": holder.user,
        "groups": list(holder.groups),
        "label": holder.label,
        "granted": count.granted,
        "waited": count.waited / 1000,
        "jobs": {how.replace("_", "-"): number for how in ENDS if (number := getattr(count, how))},
    }
