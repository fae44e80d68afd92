"""PURE: what each device did and who had it, added up by the minute from leases that begin and end and from samples.

What is held is known exactly. A sample tells of the time from it to the next, 30 seconds at most; a lease that begins
makes the last one of its devices old, since it was about somebody else. Time is an argument, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpulease.model.spans import (
    IDLE,
    Activity,
    Count,
    Counted,
    Span,
    SpanHolder,
    SpanUse,
    added,
    count_in,
    counted,
    shares,
)

MINUTE = 60_000  # milliseconds
REACH = 30_000  # that a sample tells of at most
MIB = 1 << 20


class Measured(NamedTuple):
    """What a sample says of one device; None is unknown."""

    utilization: int | None = None
    memory: int | None = None  # bytes
    power: int | None = None


class Now:
    """One device as it is."""

    __slots__ = ("leases", "outside", "reading", "reading_until", "until")

    def __init__(self, at: int) -> None:
        self.until = at  # added up so far
        self.leases: dict[str, SpanHolder] = {}
        self.outside: tuple[SpanHolder, ...] = ()
        self.reading, self.reading_until = Measured(), 0


Spans = dict[tuple[int, str], Span]  # by the minute's beginning and the device's UUID
Counts = dict[int, dict[Counted, Count]]


class Minutes:
    def __init__(self) -> None:
        self._devices: dict[str, Now] = {}
        self.spans: Spans = {}
        self.counts: Counts = {}

    # ---------------------------------------------------------------- what happens

    def lease_started(self, id: str, uuids: Iterable[str], holder: SpanHolder, at: int) -> None:
        for uuid in uuids:
            device = self._devices.setdefault(uuid, Now(at))
            self._add_up(uuid, device, at)
            device.leases[id] = holder
            device.reading_until = 0

    def lease_ended(self, id: str, at: int) -> None:
        for uuid, device in self._devices.items():
            if id in device.leases:
                self._add_up(uuid, device, at)
                del device.leases[id]

    def devices_sampled(
        self, readings: Mapping[str, Measured], outside: Mapping[str, Iterable[SpanHolder]], at: int
    ) -> None:
        for uuid, reading in readings.items():
            device = self._devices.setdefault(uuid, Now(at))
            self._add_up(uuid, device, at)
            device.reading, device.reading_until = reading, at + REACH
            device.outside = tuple(outside.get(uuid, ()))

    def count(self, holder: SpanHolder, devices: tuple[str, ...], count: Count, at: int) -> None:
        count_in(self.counts.setdefault(at // MINUTE * MINUTE, {}), (holder, devices), count)

    # ---------------------------------------------------------------- what came of it

    def add_up(self, at: int) -> None:
        for uuid, device in self._devices.items():
            self._add_up(uuid, device, at)

    def take(self, before: int) -> tuple[Spans, Counts]:
        """All that is of minutes which began before; they are not here any more."""
        spans = {key: self.spans.pop(key) for key in list(self.spans) if key[0] < before}
        counts = {minute: self.counts.pop(minute) for minute in list(self.counts) if minute < before}
        return spans, counts

    def put_back(self, spans: Spans, counts: Counts, after: int) -> None:
        """What could not be written, unless it is too old."""
        for key, span in spans.items():
            if key[0] >= after:
                self.spans[key] = span.plus(self.spans[key]) if key in self.spans else span
        for minute, found in counts.items():
            if minute >= after:
                self.counts[minute] = counted(found, self.counts.get(minute, {}))

    # ---------------------------------------------------------------- adding up

    def _add_up(self, uuid: str, device: Now, at: int) -> None:
        """Add the time since the last call, split at full minutes and at the end of the last sample's validity."""
        while device.until < at:
            begin, watched = device.until, device.until < device.reading_until
            if not device.leases and not watched:
                break
            end = min(at, (begin // MINUTE + 1) * MINUTE, device.reading_until if watched else at)
            key, span = (begin // MINUTE * MINUTE, uuid), span_of(device, end - begin, watched)
            self.spans[key] = self.spans[key].plus(span) if key in self.spans else span
            device.until = end
        device.until = max(at, device.until)


def span_of(device: Now, long: int, watched: bool) -> Span:
    """This many milliseconds of a device as it is."""
    reading = device.reading if watched else Measured()
    seen = _seen(reading, long) if watched else Activity()
    parts = _parts(list(device.leases.values()), long, reading)
    outside = device.outside if watched else ()
    return Span(seen, added(parts, _parts(outside, long, Measured() if device.leases else reading)))


def _seen(reading: Measured, long: int) -> Activity:
    known, busy, idle = _worked(reading.utilization, long)
    memory = None if reading.memory is None else reading.memory // MIB
    return Activity(long, known, busy, idle, memory, memory, reading.power)


def _worked(utilization: int | None, long: int) -> tuple[int, int, int]:
    if utilization is None:
        return 0, 0, 0
    return long, long * utilization // 100, long if utilization <= IDLE else 0


def _parts(holders: Iterable[SpanHolder], long: int, reading: Measured) -> dict[SpanHolder, SpanUse]:
    """What several have at the same time is divided evenly among them."""
    found: dict[SpanHolder, SpanUse] = {}
    many = list(holders)
    for holder, part in zip(many, shares(long, max(1, len(many))), strict=False):
        use = SpanUse(part, *_worked(reading.utilization, part))
        found[holder] = found[holder].plus(use) if holder in found else use
    return found
