"""The broker's time, which never goes back while the machine is up; and alarms, what is to happen at a moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from gpulease.broker.core.events import AlarmRang
from gpulease.broker.core.instructions import SetAlarm
from gpulease.model.store import Store
from gpulease.system import identity

TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    """Wall time as it was when this boot first asked, moved on by the time since boot."""

    def __init__(self, offset: float | None = None) -> None:
        self.offset = time.time() - _since_boot() if offset is None else offset

    def now(self) -> float:
        return self.offset + _since_boot()

    def wall_ahead(self) -> float:
        """Seconds by which the wall clock was set forward since."""
        return time.time() - self.now()

    def ticks(self) -> int:
        """Now as /proc counts it: clock ticks since boot."""
        return int(_since_boot() * TICKS)


def clock_of(store: Store) -> Clock:
    """Wall time as this boot first knew it, whatever happened to the wall clock since."""
    boot_id = identity.boot_id()
    known = store.get("facts", "clock") or {}
    clock = Clock(known["offset"] if known.get("boot_id") == boot_id else None)
    store.write("facts", "clock", {"boot_id": boot_id, "offset": clock.offset})
    store.commit()
    return clock


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# -------------------------------------------------------------------- alarms


SPARE = 1000  # entries that were taken back, before the heap is rebuilt


class Alarms:
    """An alarm that has an id can be set again and taken back, and then costs nothing."""

    def __init__(self) -> None:
        self._heap: list[SetAlarm] = []
        self._times: dict[tuple[str, str], float] = {}  # of those with an id

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next(self) -> float | None:
        return self._heap[0].time if self._heap else None

    def set(self, alarm: SetAlarm) -> None:
        heappush(self._heap, alarm)
        if alarm.id:
            self._times[alarm.what, alarm.id] = alarm.time
            self._compact()

    def drop(self, what: str, id: str) -> None:
        self._times.pop((what, id), None)
        self._compact()

    def due(self, now: float) -> Iterator[AlarmRang]:
        while self._heap and self._heap[0].time <= now:
            alarm = heappop(self._heap)
            if self._holds(alarm):
                self._times.pop((alarm.what, alarm.id), None)
                yield AlarmRang(alarm.what, alarm.id)

    def _holds(self, alarm: SetAlarm) -> bool:
        return not alarm.id or self._times.get((alarm.what, alarm.id)) == alarm.time

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._times) + SPARE:
            self._heap = [alarm for alarm in self._heap if self._holds(alarm)]
            heapify(self._heap)
