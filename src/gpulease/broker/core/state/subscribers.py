"""Clients that subscribe to changes, what each got last, and the changes of jobs that they have not got yet."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpulease.broker.core.state.tables import Changes, Table
from gpulease.broker.core.values import NOTHING
from gpulease.model.peer import Peer
from gpulease.model.store import Document


class IdRanges:
    __slots__ = ("_firsts", "_lasts", "count")

    def __init__(self, ids: Iterable[int]) -> None:
        """In order."""
        self._firsts, self._lasts = array("q"), array("q")
        self.count = 0  # of ids
        for id in ids:
            if self._lasts and self._lasts[-1] == id - 1:
                self._lasts[-1] = id
            else:
                self._firsts.append(id)
                self._lasts.append(id)
            self.count += 1

    def __len__(self) -> int:
        """How many ranges there are, which is what they cost."""
        return len(self._firsts)

    def __contains__(self, id: int) -> bool:
        at = bisect_right(self._firsts, id) - 1
        return at >= 0 and id <= self._lasts[at]

    def ranges(self, behind: int, most: int, room: int) -> list[tuple[int, int]]:
        """The next ones behind an id: at most `most` entries, with a bounded number of ids in them."""
        found: list[tuple[int, int]] = []
        for at in range(
            bisect_left(self._lasts, behind + 1), min(len(self), bisect_left(self._lasts, behind + 1) + most)
        ):
            first = max(self._firsts[at], behind + 1)
            last = min(self._lasts[at], first + room - 1)
            found.append((first, last))
            room -= 1 + last - first
            if room <= 0:
                break
        return found


MAX_NEWS = 10_000  # changes of jobs that are kept; who is to be told of more gets a fresh snapshot


class JobChange(NamedTuple):
    """For subscribers: what became of a job."""

    id: int
    row: Document | None  # None: it was removed
    opened: int  # 1 if it was over, or not there, and is open now; -1 the other way round


class Subscriber(NamedTuple):
    """A client that subscribes to changes, and what it got last."""

    peer: Peer
    topics: frozenset[str]
    jobs: IdRanges | None = None  # those that it chose; None for all
    open: int = 0  # how many of them are not over
    at: int | None = None  # of those that it chose: up to which id it was told, while its snapshot is not complete
    sent: int = 0  # how many it was told of, while its snapshot is not complete
    drained: bool = False  # the next part of its snapshot may be sent
    seen: Mapping[str, dict[str, Document]] = NOTHING  # by topic and key, but for jobs
    stamp: tuple[int, float] | None = None  # revision and time of the sample of what it has seen
    heard: int = 0  # how many changes of jobs were looked through for it
    news: tuple[Sequence[JobChange], ...] = ()  # those of them that it is to be told
    sent_at: float = float("-inf")
    fresh: bool = True  # it is to get a snapshot
    behind: bool = False  # it does not read: nothing is made for it until it has


class Subscribers(Table[Peer, Subscriber]):
    """In the order in which they are visited next. The changes of jobs are kept once for all of them."""

    __slots__ = ("_news", "_skipped", "alarm_at", "to_visit", "wanted_at")

    def __init__(self, changes: Changes) -> None:
        super().__init__(changes)
        self._news: list[JobChange] = []
        self._skipped = 0  # changes that were forgotten
        self.to_visit = 0  # how many of them, from the first on, may have something to hear
        self.wanted_at: float | None = None  # when one of them may be told what is new to it
        self.alarm_at: float | None = None

    @property
    def changes(self) -> int:
        """How many changes of jobs there have been."""
        return self._skipped + len(self._news)

    def since(self, heard: int) -> Sequence[JobChange] | None:
        """What came after this number of changes; None if some of that was forgotten."""
        return None if heard < self._skipped else self._news[heard - self._skipped :]

    def add_news(self, news: Sequence[JobChange]) -> None:
        surplus = len(self._news) - MAX_NEWS
        if surplus >= MAX_NEWS:
            del self._news[:surplus]
            self._skipped += surplus
        self._news.extend(news)
        self._changes.add(self._drop_news, len(news))

    def _drop_news(self, number: int) -> None:
        del self._news[len(self._news) - number :]

    def set(self, name: str, value: float | None) -> None:
        """Change one of the plain attributes."""
        self._changes.add(setattr, self, name, getattr(self, name))
        setattr(self, name, value)

    def visit_all(self) -> None:
        self.set("to_visit", len(self))

    def put_last(self, subscriber: Subscriber) -> None:
        """Behind all others."""
        self.drop(subscriber.peer)
        self.put(subscriber.peer, subscriber)
