"""A store that keeps nothing beyond the process: for tests and replays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from gpulease.stores.base import TABLES, Change, Document, Event


class MemoryStore:
    def __init__(self) -> None:
        self._tables: dict[str, dict[str, str]] = {table: {} for table in TABLES}
        self._events: list[Event] = []

    def load(self, table: str) -> dict[str, Document]:
        return {key: json.loads(body) for key, body in self._tables[table].items()}

    def get(self, table: str, key: str) -> Document | None:
        body = self._tables[table].get(key)
        document: Document | None = None if body is None else json.loads(body)
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
        found = []
        for key in sorted(map(int, self._tables["jobs"]), reverse=newest):
            job = json.loads(self._tables["jobs"][str(key)])
            inside = not ids or any(first <= key <= last for first, last in ids)
            wanted = (
                (not states or job["state"] in states) and uid in (None, job["uid"]) and label in (None, job["label"])
            )
            if inside and wanted:
                found.append(job)
        return found[:most]

    def count_jobs(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for body in self._tables["jobs"].values():
            state = json.loads(body)["state"]
            counts[state] = counts.get(state, 0) + 1
        return counts

    def forget_environments(self) -> None:
        used = {json.loads(body)["environment"] for body in self._tables["jobs"].values()}
        kept = self._tables["environments"].items()
        self._tables["environments"] = {key: body for key, body in kept if key in used}

    def commit(self, changes: Iterable[Change], events: Iterable[Event] = (), durable: bool = False) -> None:
        changes = list(changes)
        bodies = [None if change.document is None else json.dumps(change.document) for change in changes]
        for change, body in zip(changes, bodies, strict=True):
            if body is None:
                self._tables[change.table].pop(change.key, None)
            else:
                self._tables[change.table][change.key] = body
        self._events += events

    def events(self, since: float, most: int) -> list[Event]:
        return [event for event in self._events if event.time >= since][-most:]

    def forget_events(self, before: float) -> None:
        self._events = [event for event in self._events if event.time >= before]

    def close(self) -> None:
        return
