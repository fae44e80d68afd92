"""What a store does: keep named documents in tables, change several of them at once or none, and append events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

Document = dict[str, Any]
TABLES = ("leases", "line", "excluded", "settings", "facts", "environments", "jobs")


class Change(NamedTuple):
    """Put `document` under `key`, or remove what is there when it is None. A job's has `state`, `uid` and `label`."""

    table: str
    key: str
    document: Document | None


class Event(NamedTuple):
    """Something that happened, kept for `gpulease events`."""

    time: float
    what: str
    fields: Document


class Store(Protocol):
    def load(self, table: str) -> dict[str, Document]: ...

    def get(self, table: str, key: str) -> Document | None: ...

    def jobs(
        self,
        states: Sequence[str] = (),
        uid: int | None = None,
        label: str | None = None,
        ids: Sequence[tuple[int, int]] = (),
        most: int | None = None,
        newest: bool = False,
    ) -> list[Document]:
        """Jobs in order of their ids, or the newest first; `ids` are ranges, both ends included."""

    def count_jobs(self) -> dict[str, int]:
        """How many jobs there are in each state."""

    def forget_environments(self) -> None:
        """Remove those that no job has."""

    def commit(self, changes: Iterable[Change], events: Iterable[Event] = (), durable: bool = False) -> None:
        """All or nothing. `durable`: also survives a power cut. Raises StateError, and then nothing has changed."""

    def events(self, since: float, most: int) -> list[Event]: ...

    def forget_events(self, before: float) -> None: ...

    def close(self) -> None: ...
