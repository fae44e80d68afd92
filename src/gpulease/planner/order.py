"""PURE: the administrator's own order: what the function gets about waiting requests, and whether its answer is valid.

The function is run in a child process (broker/children/order.py); the plan only reads the order that it gave last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gpulease.model.values import Waiting
from gpulease.planner.line import Family, Line

Ranking = tuple[tuple[Waiting, Family], ...]  # in order, as they were when it was given

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
    """The first of the queue, by priority and arrival; not forced or blocked ones, nor ones that need no device."""
    front = line.front(len(line.forced) + MOST)[len(line.forced) :]
    return [
        LineEntry(
            one.id, one.kind, one.user, one.groups, one.request.gpus, one.request.memory, one.request.priority,
            one.since, max(0.0, now - one.since), one.request.duration, used.get(one.user, 0.0),
        )
        for one in front
        if one.blocked is None and one.request.gpus
    ]  # fmt: skip


def wrong_with(asked: Sequence[str], answer: object) -> str | None:
    """Why an answer is not an order of the given ids; None if it is one."""
    if not isinstance(answer, list) or not all(isinstance(id, str) for id in answer):
        return "it did not return a list of ids"
    unknown = next(iter(set(answer) - set(asked)), None)
    if unknown is not None:
        return f"it returned the id {unknown[:40]!r}, which it was not given"
    if len(set(answer)) != len(answer):
        return "it returned an id twice"
    return f"it returned {len(answer)} of {len(asked)} ids" if len(answer) != len(asked) else None


def ranked(line: Line, ids: Sequence[str]) -> Ranking:
    """Without requests that left the line meanwhile, were forced or are blocked."""
    there = [line[id] for id in ids if id in line and id not in line.forced and id not in line.blocked]
    return tuple((waiting, line.family(waiting)) for waiting in there if waiting.request.gpus)
