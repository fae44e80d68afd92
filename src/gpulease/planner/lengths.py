"""PURE: expected run times: as declared, else from how long similar jobs and leases ran.

What is declared is believed in proportion to how this user's declarations turned out. Without a declaration the
earlier runs of the same shape count: same user, same command without values, same request. Where these are few, the
estimate is drawn towards all runs of the user, these towards all requests of that size, and these towards all. What
still runs counts with what it has run, if that is longer than what was expected of it.

The caller keeps the sketches, and gives them to each plan; `learned` says what to keep when a lease has ended. In a
sketch an amount counts in the bucket of the half power of two that is nearest to it, so it stays small however many
amounts it has seen, and a quantile is off by a fifth at the most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2
from typing import NamedTuple

from gpulease.model.values import Lease, Waiting

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


# -------------------------------------------------------------------- what is expected

HOUR = 3600.0
PRIOR = 2 * HOUR  # mean of what nothing is known of
DRAWN = 3.0  # runs that the next wider group counts for
ENOUGH = 5.0  # runs of anybody; with fewer, nothing is said of what nobody declared
ALL = "all"
# Of what people declare about half comes true: of actual run time by declared time, until more is known of a user.
HONEST = {bucket_of(ratio): weight for ratio, weight in ((0.36, 1.0), (0.5, 1.0), (0.71, 1.0))}
HONEST_MEAN = 0.55
LIKELY, LATEST = 0.5, 0.9  # parts of all cases that an estimate is told for

Sketches = Mapping[str, Sketch]
NO_SKETCHES: Sketches = {}


class Alike(NamedTuple):
    """Requests of one user that declared nothing and are expected to run equally long."""

    shape: str | None
    size: str  # "" of those without a shape: one class of them costs a plan less


SHAPELESS = Alike(None, "")


class Length(NamedTuple):
    """How long something should run in all, as a distribution."""

    mean: float
    counts: Mapping[int, float]
    unit: float = 1.0  # seconds that the counts are in

    def times(self, factor: float) -> Length:
        return Length(self.mean * factor, self.counts, self.unit * factor)

    def after(self, age: float, part: float) -> float:
        """Seconds that it goes on after it has run for `age`, with this probability at the most.

        What ran longer than anything that is known of goes on for as long again with a probability of one half.
        """
        left = {at: many for at, many in self.counts.items() if middle_of(at) * self.unit > age}
        if age > 0 and sum(left.values()) < 0.05 * sum(self.counts.values()):
            return age * part / (1 - part)
        return max(0.0, quantile(left or self.counts, part) * self.unit - age)


def size_name(gpus: int, memory: int | None) -> str:
    """Shares of about the same size, within a factor of four, are one."""
    return f"gpus {gpus}" if memory is None else f"share {bucket_of(memory) // 4}"


def alike(waiting: Waiting) -> Alike:
    if waiting.shape is None:
        return SHAPELESS
    return Alike(waiting.shape, size_name(waiting.request.gpus, waiting.request.memory))


def of_user(user: str) -> str:
    return f"user {user}"


def of_declared(user: str) -> str:
    return f"declared {user}"


def of_shape(shape: str) -> str:
    return f"shape {shape}"


def groups_of(user: str, like: Alike) -> list[str]:
    """The sketches that tell of it, the narrowest first."""
    if like.shape is None:
        return [of_user(user), ALL]
    return [of_shape(like.shape), f"{of_user(user)} {like.size}", of_user(user), like.size, ALL]


def like_of(lease: Lease) -> Alike:
    if lease.shape is None:
        return SHAPELESS
    return Alike(lease.shape, size_name(len(lease.devices), None if lease.packed else lease.memory))


def is_work(lease: Lease) -> bool:
    """Whether its length tells of others: a reservation lasts as long as somebody said."""
    return lease.kind != "reservation"


def learned(sketches: Sketches, lease: Lease, now: float) -> dict[str, Sketch]:
    """The sketches that change because a lease ended at `now`."""
    if not is_work(lease):
        return {}
    user, run = lease.owner.user, max(0.0, now - lease.since)
    found = {name: seen(sketches.get(name, EMPTY), run, now) for name in groups_of(user, like_of(lease))}
    if lease.duration:
        ratio, name = run / lease.duration, of_declared(user)
        found[name] = seen(sketches.get(name, EMPTY), ratio, now)
    return found


class Lengths:
    """The estimates of one plan. Means are worked out at once, distributions when somebody asks."""

    def __init__(self, sketches: Sketches, leases: Iterable[Lease], now: float) -> None:
        self.sketches, self.now = sketches, now
        self.running: dict[str, list[float]] = {}
        self._means: dict[tuple[str, Alike], float] = {}
        self._lengths: dict[tuple[str, Alike], Length] = {}
        for lease in leases:
            if is_work(lease):
                for name in groups_of(lease.owner.user, like_of(lease)):
                    self.running.setdefault(name, []).append(now - lease.since)
        self.known = ALL in sketches and faded(sketches[ALL], now).weight >= ENOUGH

    def mean(self, user: str, like: Alike) -> float:
        """Seconds that one which declared nothing should run."""
        found = self._means.get((user, like))
        if found is None:
            found = PRIOR
            for name in reversed(groups_of(user, like)):
                if name in self.sketches or name in self.running:
                    weight, total = self._sum(name, found)
                    found = (total + DRAWN * found) / (weight + DRAWN)
            self._means[user, like] = found
        return found

    def _sum(self, name: str, mean: float) -> tuple[float, float]:
        """Runs and their seconds; runs that have not ended count if they are longer than expected."""
        weight, total, _, _ = faded(self.sketches.get(name, EMPTY), self.now)
        long = [age for age in self.running.get(name, ()) if age > mean]
        return weight + len(long), total + sum(long)

    def declared(self, user: str, declared: float) -> float:
        """Seconds that a run with this declared time should take."""
        return declared * self.credit(user).mean

    def credit(self, user: str) -> Length:
        """Of the time that a user declares, the part that comes true."""
        weight, total, _, counts = faded(self.sketches.get(of_declared(user), EMPTY), self.now)
        mean = (total + DRAWN * HONEST_MEAN) / (weight + DRAWN)
        return Length(mean, _added(dict(counts), HONEST, 1.0))

    def of_alike(self, user: str, like: Alike) -> Length | None:
        """None where too little is known of anybody."""
        if not self.known:
            return None
        found = self._lengths.get((user, like))
        if found is None:
            counts: dict[int, float] = {}
            for name in reversed(groups_of(user, like)):
                own = dict(faded(self.sketches.get(name, EMPTY), self.now).counts)
                counts = _added(own, counts, DRAWN / (sum(counts.values()) or 1.0))
            found = self._lengths[user, like] = Length(self.mean(user, like), counts)
        return found

    def of_waiting(self, waiting: Waiting) -> Length | None:
        declared = waiting.request.duration
        if declared is not None:
            return self.credit(waiting.user).times(declared)
        return self.of_alike(waiting.user, alike(waiting))

    def of_run(self, lease: Lease) -> float:
        """Seconds that a lease should have run in all, as it began."""
        user = lease.owner.user
        return self.mean(user, like_of(lease)) if lease.duration is None else self.declared(user, lease.duration)

    def alone(self, name: str) -> Length:
        """What one sketch tells, without any other."""
        weight, total, _, counts = faded(self.sketches[name], self.now)
        return Length(total / weight, dict(counts))

    def of_lease(self, lease: Lease) -> Length | None:
        """What it declared counts until it has exceeded that."""
        if lease.duration is not None and lease.duration > self.now - lease.since:
            return self.credit(lease.owner.user).times(lease.duration)
        return self.of_alike(lease.owner.user, like_of(lease))


def _added(counts: dict[int, float], more: Mapping[int, float], times: float) -> dict[int, float]:
    for at, many in more.items():
        counts[at] = counts.get(at, 0.0) + times * many
    return counts
