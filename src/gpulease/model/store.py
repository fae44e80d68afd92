"""What a store does: keep named documents in tables, change several of them at once or none, and append events.

Readers of the store see what was written, and `rollback` undoes it until it is committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

Document = dict[str, Any]
ENDS = ("complete", "failed", "invalid", "killed", "lost")  # states of jobs that are over
SOME = 1 << 20  # characters of jobs that are read in a moment
TABLES = ("leases", "line", "excluded", "settings", "facts", "environments", "jobs")


class HistoryEvent(NamedTuple):
    """Something that happened, kept for `gpulease events`."""

    time: float
    what: str
    fields: Document


class Which(NamedTuple):
    """Which jobs are meant: what all of them are. None and nothing: whatever it is."""

    states: Sequence[str] = ()
    uid: int | None = None
    label: str | None = None
    ids: Sequence[tuple[int, int]] = ()  # ranges, both ends included


EVERY = Which()


class ListedJob(NamedTuple):
    """What most questions about many jobs are about."""

    id: int
    state: str
    uid: int
    exit_code: int | None


class Store(Protocol):
    def load(self, table: str) -> dict[str, Document]: ...

    def get(self, table: str, key: str) -> Document | None: ...

    def jobs(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[Document]:
        """Jobs in order of their ids, or the newest first."""

    def some_jobs(self, which: Which, most: int) -> tuple[list[Document], bool]:
        """The first of them, as many as are read in a moment; and whether there may be others."""

    def job_rows(self, which: Which = EVERY, most: int | None = None, newest: bool = False) -> list[ListedJob]:
        """The same, without most of what is known of them."""

    def count_jobs(self, which: Which = EVERY) -> dict[tuple[int, str], int]:
        """How many jobs there are, by user and state."""

    def write(self, table: str, key: str, document: Document | None) -> None:
        """Put `document` under `key`, or remove what is there when it is None. A job has `state`, `uid`, `label`."""

    def append(self, record: HistoryEvent) -> None: ...

    def forget_environments(self, keys: Iterable[str]) -> dict[str, Document]:
        """Remove those of them that no job has; which those were."""

    def environments_in_use(self, since: float, after: str, most: int) -> dict[str, bool]:
        """Of the first ones behind the key `after`: whether a job has it that is not over, or ended since."""

    def jobs_ended(self, before: float, most: int) -> list[Document]:
        """Jobs that ended before, the oldest first."""

    def forget_events(self, before: float, kept: int, most: int) -> int:
        """Of the oldest `most`, remove what is older, or beyond the newest `kept`; how many there were."""

    def commit(self, durable: bool = False) -> bool:
        """All that was written since the last commit; whether anything was. `durable`: it also survives a power cut.

        `commit` and everything that writes raise StateError; after `rollback` nothing has changed then.
        """

    def rollback(self) -> None:
        """As it was at the last commit."""

    def event_numbers(self, since: float, most: int) -> list[int]:
        """Of the newest events since then, the oldest first."""

    def event(self, number: int) -> HistoryEvent | None: ...

    def keep(self) -> None:
        """See that the next broker finds what was committed: what was written to a file that was removed is lost."""

    def freeze(self) -> str:
        """Leave its file as it is from now on, with all that was committed, until `let_go`; its path."""

    def unfreeze(self) -> None: ...

    def shrink(self) -> None:
        """Give a little of the room that nothing takes any more back to the disk."""

    def close(self) -> None: ...
