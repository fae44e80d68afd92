"""A store that keeps nothing beyond the process: for tests and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gpulease.errors import StateError
from gpulease.model.store import ENDS, EVERY, TABLES, Document, HistoryEvent, ListedJob, Which


class MemoryStore:
    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {table: {} for table in TABLES}
        self._events: list[tuple[int, HistoryEvent]] = []  # with their numbers
        self._kept = 0  # how many of them are committed
        self._undo: list[tuple[str, str, str | None]] = []

    def load(self, table: str) -> dict[str, Document]:
        return {key: json.loads(body) for key, body in self._tables[table].items()}

    def get(self, table: str, key: str) -> Document | None:
        body = self._tables[table].get(key)
        document: Document | None = None if body is None else json.loads(body)
        return document

    def jobs(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[Document]:
        found = []
        for key in sorted(map(int, self._tables["jobs"]), reverse=newest):
            job = json.loads(self._tables["jobs"][str(key)])
            if _is_meant(job, which):
                found.append(job)
        return found[:most]

    def some_jobs(self, which: Which, most: int) -> tuple[list[Document], bool]:
        found = self.jobs(which, most)
        return found, len(found) == most

    def job_rows(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[ListedJob]:
        found = self.jobs(which, most, newest)
        return [ListedJob(job["id"], job["state"], job["uid"], job.get("exit_code")) for job in found]

    def count_jobs(self, which: Which = EVERY) -> dict[tuple[int, str], int]:
        counts: dict[tuple[int, str], int] = {}
        for row in self.job_rows(which):
            counts[row.uid, row.state] = counts.get((row.uid, row.state), 0) + 1
        return counts

    def forget_environments(self, keys: Iterable[str]) -> dict[str, Document]:
        used = {json.loads(body)["environment"] for body in self._tables["jobs"].values()}
        gone = {key: found for key in set(keys) - used if (found := self.get("environments", key)) is not None}
        for key in gone:
            self.write("environments", key, None)
        return gone

    def environments_in_use(self, since: float, after: str, most: int) -> dict[str, bool]:
        found = [job for job in self.load("jobs").values() if job.get("ended") is None or job["ended"] >= since]
        used = {job["environment"] for job in found}
        keys = [key for key in sorted(self._tables["environments"]) if key > after]
        return {key: key in used for key in keys[:most]}

    def write(self, table: str, key: str, document: Document | None) -> None:
        body = None if document is None else json.dumps(document)
        self._undo.append((table, key, self._tables[table].get(key)))
        self._set(table, key, body)

    def _set(self, table: str, key: str, body: str | None) -> None:
        if body is None:
            self._tables[table].pop(key, None)
        else:
            self._tables[table][key] = body

    def append(self, record: HistoryEvent) -> None:
        self._events.append((self._events[-1][0] + 1 if self._events else 1, record))

    def jobs_ended(self, before: float, most: int) -> list[Document]:
        found = [job for job in self.jobs(Which(ENDS)) if job["ended"] < before]
        return sorted(found, key=lambda job: float(job["ended"]))[:most]

    def forget_events(self, before: float, kept: int, most: int) -> int:
        beyond = len(self._events) - kept
        old = {n for n, event in enumerate(self._events[:most]) if event[1].time < before or n < beyond}
        self._events = [event for number, event in enumerate(self._events) if number not in old]
        self._kept -= sum(number < self._kept for number in old)
        return len(old)

    def commit(self, durable: bool = False) -> bool:
        written = bool(self._undo) or self._kept != len(self._events)
        self._undo.clear()
        self._kept = len(self._events)
        return written

    def rollback(self) -> None:
        while self._undo:
            self._set(*self._undo.pop())
        del self._events[self._kept :]

    def event_numbers(self, since: float, most: int) -> list[int]:
        return [number for number, event in self._events if event.time >= since][-most:]

    def event(self, number: int) -> HistoryEvent | None:
        return dict(self._events).get(number)

    def keep(self) -> None:
        pass

    def freeze(self) -> str:
        raise StateError("This state is in no file.")

    def unfreeze(self) -> None:
        pass

    def shrink(self) -> None:
        pass

    def close(self) -> None:
        return


def _is_meant(job: Document, which: Which) -> bool:
    states, uid, label, ids = which
    inside = not ids or any(first <= job["id"] <= last for first, last in ids)
    mine = uid in (None, job["uid"]) and label in (None, job["label"])
    return inside and mine and (not states or job["state"] in states)
