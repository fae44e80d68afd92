"""PURE: what a device did, and who had it, during a span of time; and how spans are added up to longer ones.

Times are whole milliseconds, so that adding up loses nothing: an hour has exactly what its minutes had. Not here: what
is measured when (broker/edge/minutes.py), nor where it is kept (broker/store/history.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

DAY = 86400
KEPT = {60: 2 * DAY, 600: 14 * DAY, 3600: 90 * DAY}  # seconds of a span -> for how long spans of it are kept
LONGEST = DAY  # of a span that is asked for
MAX_LABELS = 32  # holders of one device in one span that are told apart by their labels too
MAX_COUNTS = 256  # the same of counts in one span
IDLE = 1  # percent: at this utilization or less a device is idle


class DeviceName(NamedTuple):
    """A device as people know it now."""

    uuid: str
    label: str
    name: str


class SpanHolder(NamedTuple):
    """The holder of a device."""

    user: str
    groups: tuple[str, ...] = ()
    label: str | None = None  # of a job
    outside: bool = False  # without a lease


class SpanUse(NamedTuple):
    """What a holder had of a device, in milliseconds."""

    held: int = 0
    known: int = 0  # of these, the utilization is known
    busy: int = 0  # of these, the device computed
    idle: int = 0  # of these, it did as good as nothing

    def plus(self, other: SpanUse) -> SpanUse:
        return SpanUse(*(mine + more for mine, more in zip(self, other, strict=True)))


class Activity(NamedTuple):
    """What samples say about a device: times in milliseconds, and means. None is unknown."""

    watched: int = 0
    known: int = 0
    busy: int = 0
    idle: int = 0
    memory: int | None = None  # MiB
    memory_most: int | None = None
    power: int | None = None  # milliwatts

    def plus(self, other: Activity) -> Activity:
        return Activity(
            self.watched + other.watched,
            self.known + other.known,
            self.busy + other.busy,
            self.idle + other.idle,
            _mean(self.memory, self.watched, other.memory, other.watched),
            _most(self.memory_most, other.memory_most),
            _mean(self.power, self.watched, other.power, other.watched),
        )


class Span(NamedTuple):
    seen: Activity = Activity()
    uses: Mapping[SpanHolder, SpanUse] = {}

    def plus(self, other: Span) -> Span:
        return Span(self.seen.plus(other.seen), added(self.uses, other.uses))


class Count(NamedTuple):
    """How many leases were granted, how long they had waited, and how many jobs ended how."""

    granted: int = 0
    waited: int = 0  # milliseconds
    complete: int = 0
    failed: int = 0
    out_of_memory: int = 0
    killed: int = 0
    lost: int = 0
    invalid: int = 0

    def plus(self, other: Count) -> Count:
        return Count(*(mine + more for mine, more in zip(self, other, strict=True)))


Counted = tuple[SpanHolder, tuple[str, ...]]  # whose, and on which devices


def _mean(one: int | None, weight: int, other: int | None, other_weight: int) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    whole = weight + other_weight
    return (one * weight + other * other_weight) // whole if whole else one


def _most(one: int | None, other: int | None) -> int | None:
    return max(one, other) if one is not None and other is not None else one if other is None else other


def added(uses: Mapping[SpanHolder, SpanUse], more: Mapping[SpanHolder, SpanUse]) -> dict[SpanHolder, SpanUse]:
    """Both together. Beyond a fixed number of holders the labels of new ones are left out: their number has a bound."""
    found = dict(uses)
    for holder, use in more.items():
        if holder not in found and holder.label is not None and len(found) >= MAX_LABELS:
            holder = holder._replace(label=None)
        found[holder] = found.get(holder, SpanUse()).plus(use)
    return found


def counted(counts: Mapping[Counted, Count], more: Mapping[Counted, Count]) -> dict[Counted, Count]:
    """The same of counts, where the devices are left out too."""
    found = dict(counts)
    for whose, count in more.items():
        count_in(found, whose, count)
    return found


def count_in(counts: dict[Counted, Count], whose: Counted, count: Count) -> None:
    if whose not in counts and len(counts) >= MAX_COUNTS:
        whose = (whose[0]._replace(label=None), ())
    counts[whose] = counts.get(whose, Count()).plus(count)


def shares(whole: int, number: int) -> list[int]:
    """A time divided evenly among this number, without a rest."""
    part, rest = divmod(whole, number)
    return [part + (at < rest) for at in range(number)]


class Asked(NamedTuple):
    """From when to when, in seconds, and in which steps; `kept`: of the spans that are read for it."""

    since: int
    until: int
    step: int
    kept: int


def asked(since: float, until: float, step: float, now: float) -> Asked:
    """Whole steps around what was asked for. Longer ones than asked for where the short ones are kept no more."""
    wanted = min(LONGEST, max(60, int(step) // 60 * 60))
    since = max(since, now - KEPT[3600])
    fitting = [kept for kept in KEPT if wanted % kept == 0]
    lasting = [kept for kept, age in KEPT.items() if since >= now - age] or [3600]
    kept = max(fitting[-1], lasting[0])
    wanted = max(kept, wanted // kept * kept)
    return Asked(int(since // wanted) * wanted, -int(-min(until, now) // wanted) * wanted, wanted, kept)


Row = tuple[int, str, Span]  # when it began, in seconds, and the UUID of the device


def joined(rows: Iterable[Row], step: int) -> list[Row]:
    """Rows of one step each."""
    found: dict[tuple[int, str], Span] = {}
    for time, uuid, span in rows:
        key = (time // step * step, uuid)
        found[key] = found[key].plus(span) if key in found else span
    return [(time, uuid, span) for (time, uuid), span in found.items()]


def in_order(label: str) -> tuple[int, int]:
    """`10` comes behind `9`, and `1:0` behind `1`."""
    index, _, instance = label.partition(":")
    return (int(index) if index.isdecimal() else 1 << 30, int(instance) if instance.isdecimal() else -1)
