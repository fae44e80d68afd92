"""PURE: on which host a request, or each job of a batch, would start soonest; of equals, on the one with less load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple


class HostOffer(NamedTuple):
    """A host that could serve the request, by its own planner's word."""

    host: str
    starts: Sequence[float | None]  # seconds from now, of the first, the second, … alike; None: nobody knows
    load: float  # GPUs held or waited for, by GPUs that are there
    gpus: int

    @classmethod
    def of(cls, host: str, answer: dict[str, Any]) -> HostOffer | None:
        """From `gpulease explain --json` there; None if it can never be served there."""
        if not answer["possible"]:
            return None
        return cls(host, answer["starts"], answer["load"], answer["gpus"])


def spread(candidates: Sequence[HostOffer], count: int, gpus: int = 1) -> list[str]:
    """A host for each of `count` requests alike, in their order: each goes where the next of them starts soonest."""
    taken = dict.fromkeys((one.host for one in candidates), 0)
    found = []
    for _ in range(count):
        best = min(candidates, key=lambda one: _rank(one, taken[one.host], gpus))
        taken[best.host] += 1
        found.append(best.host)
    return found


def _rank(one: HostOffer, taken: int, gpus: int) -> tuple[float, float]:
    start = one.starts[taken] if taken < len(one.starts) else None
    return inf if start is None else start, one.load + taken * max(gpus, 1) / max(one.gpus, 1)


class Move(NamedTuple):
    job: int
    source: str
    target: str


def moves(
    waiting: Sequence[tuple[str, int, float | None, str]],
    candidates: Mapping[str, Sequence[HostOffer]],
    margin: float,
) -> list[Move]:
    """Which waiting jobs would start sooner elsewhere, by `margin` seconds or where nobody knows when they start.

    `waiting`: host, id, in how many seconds it should start, and the key of its request in `candidates`.
    What goes to a host counts there for whatever comes after it.
    """
    taken: dict[str, int] = {}
    found = []
    for source, job, start, key in waiting:
        others = [one for one in candidates[key] if one.host != source]
        if not others:
            continue
        best = min(others, key=lambda one: _rank(one, taken.get(one.host, 0), 1))
        sooner = _rank(best, taken.get(best.host, 0), 1)[0]
        if sooner < inf and (start is None or sooner + margin < start):
            taken[best.host] = taken.get(best.host, 0) + 1
            found.append(Move(job, source, best.host))
    return found
