"""What is to happen at a moment. An alarm that has an id can be set anew and taken back, and then costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from gpulease.broker.core.events import AlarmRang
from gpulease.broker.core.instructions import SetAlarm

SPARE = 1000  # entries that were taken back, before the heap is made anew


class Alarms:
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
