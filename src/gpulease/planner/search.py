"""PURE: where a plan looks for the next request of one class, and who is served next, whatever fits.

In which queues, how far, and what their keys count. A look ahead assumes an order: forced requests, those that devices
are held for, an order of the administrator's own; then by priority, fair share and the order of the policy, as a plan
does it. Not here: that overdue requests go first.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace, merge
from itertools import chain, islice, takewhile
from math import inf
from sys import maxsize

from gpulease.model.values import Waiting
from gpulease.planner.fairness import Standing
from gpulease.planner.lengths import Alike, Lengths, alike
from gpulease.planner.line import Line, Party, Queues, Tier, expected_of, place_of, ready_of
from gpulease.planner.policy import SHORT, Policy
from gpulease.planner.queue import Key, Queue
from gpulease.planner.why import Overtaken

ROUNDING = 1e-3  # seconds that a moment may be off which was added up in another order


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


class Orders:
    """The orders of one plan."""

    def __init__(self, line: Line, policy: Policy, lengths: Lengths, now: float) -> None:
        self.line, self.policy, self.lengths, self.now = line, policy, lengths, now
        self.usual: Order = self.by_length if policy.order == SHORT else by_arrival

    def by_patience(self, party: Party, queues: Queues) -> list[Search]:
        """Overdue requests, by the moment when that began."""
        found, now = [], self.now
        if queues.deadline and queues.deadline.firsts[0][0] <= now:
            found.append(Search(queues.deadline, now))
        for like, queue in queues.undeclared.items():
            span = self.patience(party.user, like)
            since = now - span + ROUNDING
            if queue.firsts[0][0] <= since:
                found.append(Search(queue, since, span))
        return found

    def patience(self, user: str, like: Alike) -> float:
        if not self.lengths.known:
            return self.policy.patience_undeclared
        return self.line.patience.span(self.lengths.mean(user, like))

    def by_length(self, party: Party, queues: Queues) -> Iterator[Search]:
        """The shortest expected first; of equal ones, who came first."""
        if queues.short:
            yield Search(queues.short)
        for like, queue in queues.undeclared.items():
            yield Search(queue, length=self.lengths.mean(party.user, like))

    def overtaken(self, waiting: Waiting, first: Iterable[Waiting], standing: Standing) -> Overtaken | None:
        """Requests that are served `first` and came later: of users who had less lately, and shorter ones.

        Shorter ones go first only as long as its patience has not ended.
        """
        place, priority = place_of(waiting)[0], waiting.request.priority
        ahead = takewhile(lambda one: one.id != waiting.id, first)
        later = [one for one in ahead if place_of(one)[0] > place and one.request.priority == priority]
        mine = standing.of(waiting.user)
        fairer = tuple(dict.fromkeys(one.user for one in later if standing.of(one.user) < mine))
        shorter, turn = self._shorter(waiting, [one for one in later if one.user not in fairer])
        return Overtaken(shorter, turn, fairer) if shorter or fairer else None

    def _shorter(self, waiting: Waiting, later: list[Waiting]) -> tuple[tuple[str, ...], float]:
        """The shorter ones, and for how many seconds they go first."""
        if self.policy.order != SHORT:
            return (), 0.0
        length = self.length_of(waiting)
        expected = expected_of(waiting)
        patience = (
            self.patience(waiting.user, alike(waiting)) if expected is None else self.line.patience.span(expected)
        )
        turn = min(ready_of(waiting) + patience, waiting.since + self.policy.longest_wait)
        shorter = tuple(one.id for one in later if self.length_of(one) < length)
        return (shorter, turn - self.now) if turn > self.now else ((), 0.0)

    def length_of(self, waiting: Waiting) -> float:
        """Seconds that it should run."""
        expected = expected_of(waiting)
        return self.lengths.mean(waiting.user, alike(waiting)) if expected is None else expected


# -------------------------------------------------------------------- who is served next

PASSED_OVER = 4  # times as many are looked at as are wanted


def next_in_line(
    line: Line, standing: Standing, first: Iterable[str], able: Callable[[Waiting], bool], most: int, order: Order
) -> list[Waiting]:
    """The first `most` requests that are able to start; `first` are ids that go before the others."""
    forced = sorted(line.forced, key=lambda id: (line.forced[id].since, id))
    special = (line[id] for id in chain(forced, first) if id in line)
    tiers = (_by_share(line, line.tiers[priority], standing, order) for priority in sorted(line.tiers))
    everybody = islice(chain(special, chain.from_iterable(tiers)), PASSED_OVER * most)
    found: dict[str, Waiting] = {}
    for waiting in everybody:
        if len(found) == most:
            break
        if able(waiting):
            found[waiting.id] = waiting
    return list(found.values())


def _by_share(line: Line, tier: Tier, standing: Standing, order: Order) -> Iterator[Waiting]:
    """Of the user who had the least each time, a grant being charged; of equal users, by the order."""
    charged: dict[str, float] = {}
    entries = [
        merge(*(search.keys() for queues in families.values() for search in order(party, queues)))
        for party, families in tier.parties.items()
    ]
    heads = [(standing.of(party.user), next(entries[at]), at) for at, party in enumerate(tier.parties)]
    heapify(heads)
    while heads:
        _, key, at = heappop(heads)
        waiting = line[key[-1]]
        yield waiting
        user = waiting.user
        charged[user] = charged.get(user, 0.0) + waiting.request.gpus * standing.policy.minimum_charge
        following = next(entries[at], None)
        if following is not None:
            heappush(heads, (standing.of(user) + charged[user], following, at))
