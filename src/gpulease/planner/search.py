"""PURE: where a plan looks for the next request of one class: in which queues, how far, and what their keys count."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import islice, takewhile
from math import inf
from sys import maxsize

from gpulease.planner.line import Party, Queues
from gpulease.planner.queue import Key, Queue


class Search:
    """One queue, up to a key. `later`: so much is added to its keys; `length`: what all of it counts instead."""

    __slots__ = ("later", "length", "queue", "until")

    def __init__(self, queue: Queue, until: float = inf, later: float = 0.0, length: float | None = None) -> None:
        self.queue, self.until, self.later, self.length = queue, until, later, length

    def _counts(self, key: Key) -> Key:
        return (key[0] + self.later, key[1], key[2]) if self.length is None else (self.length, key[0], key[2])

    def first(self, size: int, ready: float, duration: float, skip: Container[str]) -> Key | None:
        """Of the first that is within these limits: what its key counts for."""
        found = self.queue.first(self.until, size, ready, duration, skip)
        return None if found is None else self._counts(found[0])

    def keys(self) -> Iterator[Key]:
        return (self._counts(key) for key, _ in takewhile(lambda one: one[0][0] <= self.until, self.queue))


def in_order(searches: Iterable[tuple[Search, int]]) -> Iterator[Key]:
    """The keys of several, each with how many of it count. Of most only the first is looked at."""
    heads = [
        (search._counts(search.queue.firsts[0]), at, search, most) for at, (search, most) in enumerate(searches) if most
    ]
    heapify(heads)
    begun: dict[int, Iterator[Key]] = {}
    while heads:
        key, at, search, most = heads[0]
        yield key
        if at not in begun:
            begun[at] = islice(search.keys(), 1, min(maxsize, most))
        following = next(begun[at], None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (following, at, search, most))


Order = Callable[[Party, Queues], Iterable[Search]]


def by_arrival(party: Party, queues: Queues) -> Iterable[Search]:
    return (Search(queues.arrival),)
