"""PURE: an order of the administrator's own: what its function is told of the waiting, and whether its answer is one.

The function is run in a child process (broker/children/order.py); the plan only reads the order that it gave last.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from gpulease.model.values import Waiting
from gpulease.planner.line import Family, Line, Party, Queues, entry_of, party_of
from gpulease.planner.queue import Key, Queue

MOST = 1000  # requests that the function is told of; those behind them keep the order that they have


class LineEntry(NamedTuple):
    """One request that waits, as the function sees it."""

    id: str
    kind: str  # run, get, shell, acquire, job, pool or reservation
    user: str
    groups: tuple[str, ...]
    gpus: int  # 1 for a share
    memory: int | None  # bytes, of a share
    priority: int
    since: float  # Unix seconds
    waited: float  # seconds
    duration: float | None  # seconds, as it was declared
    used: float  # GPU-seconds that its user had lately; older ones count for less


def entries(line: Line, used: Mapping[str, float], now: float) -> list[LineEntry]:
    """The first of the line, by priority and arrival; not who was forced, is blocked, or needs no device."""
    front = line.front(len(line.forced) + MOST)[len(line.forced) :]
    return [_entry(waiting, used, now) for waiting in front if waiting.blocked is None and waiting.request.gpus]


def _entry(waiting: Waiting, used: Mapping[str, float], now: float) -> LineEntry:
    request, user = waiting.request, waiting.user
    waited = max(0.0, now - waiting.since)
    return LineEntry(
        waiting.id, waiting.kind, user, waiting.groups, request.gpus, request.memory, request.priority, waiting.since,
        waited, request.duration, used.get(user, 0.0),
    )  # fmt: skip


def wrong_with(asked: Sequence[str], told: object) -> str | None:
    """Why an answer is no order of what was asked; None when it is one."""
    if not isinstance(told, list) or not all(isinstance(id, str) for id in told):
        return "it did not return a list of ids"
    given = set(asked)
    unknown = next((id for id in told if id not in given), None)
    if unknown is not None:
        return f"it returned the id {unknown[:40]!r}, which it was not given"
    if len(set(told)) != len(told):
        return "it returned an id twice"
    if len(told) != len(asked):
        return f"it returned {len(told)} of {len(asked)} ids"
    return None


class RankedClass(NamedTuple):
    """What one user asks at one priority with one set of filters, in the given order."""

    priority: int
    party: Party
    families: dict[Family, Queues]  # one


class Ranking(NamedTuple):
    """An order, indexed so that a plan looks at the heads of its classes only."""

    classes: tuple[RankedClass, ...]
    waiting: dict[str, Waiting]  # as they were when the order was given


def ranked(line: Line, ids: Sequence[str]) -> Ranking:
    """Whoever left the line meanwhile, was forced or is blocked has no place in it."""
    there = [line[id] for id in ids if id in line and id not in line.forced and id not in line.blocked]
    present = [waiting for waiting in there if waiting.request.gpus]
    queues: dict[tuple[int, Party, int], list[tuple[Key, Waiting]]] = {}
    for rank, waiting in enumerate(present):
        key = (waiting.request.priority, party_of(waiting), _identity(line.family(waiting)))
        queues.setdefault(key, []).append(((float(rank), 0.0, waiting.id), waiting))
    classes = tuple(_class(line, [one for _, one in found], [key for key, _ in found]) for found in queues.values())
    return Ranking(classes, {waiting.id: waiting for waiting in present})


def _identity(family: Family) -> int:
    """The line keeps one object for equal families, and hashing one is slow."""
    return id(family)


def _class(line: Line, many: list[Waiting], keys: list[Key]) -> RankedClass:
    queue = Queue()
    queue.extend(list(zip(keys, map(entry_of, many), strict=True)))
    return RankedClass(
        many[0].request.priority, party_of(many[0]), {line.family(many[0]): Queues(queue, Queue(), Queue(), {})}
    )


class Passed:
    """Who is passed over: granted in this plan; or gone from the line, or changed, since the order was given."""

    def __init__(self, ranking: Ranking, line: Line, granted: Container[str]) -> None:
        self._waiting, self._line, self._granted = ranking.waiting, line, granted

    def __contains__(self, id: object) -> bool:
        return id in self._granted or not self._line.holds(self._waiting[str(id)])
