"""PURE: a small sketch of many amounts, such as run times: how many, their mean and their quantiles. Old ones fade.

An amount counts in the bucket of the half power of two that is nearest to it, so a sketch stays small however many
amounts it has seen, and a quantile is off by a fifth at the most. Not here: what the amounts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2
from typing import NamedTuple

LEAST, MOST = 1e-3, 1e15  # amounts beyond these count as these
HALF_LIFE = 30 * 86400.0  # seconds after which an amount counts half
FADED = 0.01  # weight below which a bucket is forgotten


class Sketch(NamedTuple):
    weight: float = 0.0  # how many amounts, older ones for less
    total: float = 0.0  # their sum, likewise
    time: float = 0.0  # of these weights
    counts: tuple[tuple[int, float], ...] = ()  # buckets in order, each with its weight

    @classmethod
    def read(cls, stored: Iterable[object]) -> Sketch:
        """As JSON keeps it."""
        weight, total, time, counts = stored
        rows: Iterable[tuple[int, float]] = counts  # type: ignore[assignment]
        return cls(float(str(weight)), float(str(total)), float(str(time)), tuple((at, many) for at, many in rows))


EMPTY = Sketch()


def bucket_of(amount: float) -> int:
    return round(2 * log2(min(MOST, max(LEAST, amount))))


def middle_of(bucket: float) -> float:
    return float(2.0 ** (bucket / 2))


def faded(sketch: Sketch, now: float) -> Sketch:
    """As it counts at `now`."""
    part = 0.5 ** (max(0.0, now - sketch.time) / HALF_LIFE)
    counts = tuple((at, many * part) for at, many in sketch.counts if many * part >= FADED)
    return Sketch(sketch.weight * part, sketch.total * part, max(now, sketch.time), counts)


def seen(sketch: Sketch, amount: float, now: float) -> Sketch:
    """With one more amount."""
    weight, total, time, counts = faded(sketch, now)
    there = dict(counts)
    at = bucket_of(amount)
    there[at] = there.get(at, 0.0) + 1.0
    return Sketch(weight + 1.0, total + min(MOST, max(LEAST, amount)), time, tuple(sorted(there.items())))


def quantile(counts: Mapping[int, float], part: float) -> float:
    """The amount that so large a part of them is below; what is in a bucket is spread evenly over it."""
    wanted = part * sum(counts.values())
    at = 0
    for at in sorted(counts):
        if counts[at] >= wanted and counts[at] > 0:
            return middle_of(at - 0.5 + wanted / counts[at])
        wanted -= counts[at]
    return middle_of(at + 0.5)
