"""The utilization of each GPU as time passes, in columns of 2 s, 10 s and 1 min. No clock of its own."""

from __future__ import annotations

from collections import deque
from typing import Any

STEPS = (2, 10, 60)  # seconds of a column
KEPT = 240  # columns of each; no terminal shows more of them


class RecentLoad:
    """Means by column. What was not seen is None."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int], deque[tuple[int, float, int]]] = {}

    def add(self, uuid: str, time: float, percent: float | None) -> None:
        """One sample; samples come in the order of time."""
        if percent is None:
            return
        for step in STEPS:
            kept = self._columns.setdefault((uuid, step), deque(maxlen=KEPT))
            number, total, count = int(time // step), percent, 1
            if kept and kept[-1][0] == number:
                _, before, samples = kept.pop()
                total, count = before + percent, samples + 1
            if not kept or kept[-1][0] < number:
                kept.append((number, total, count))

    def begin(self, past: dict[str, list[tuple[float, float]]], now: float) -> None:
        """What was before the first sample, as the broker kept it by the minute."""
        for uuid, rows in past.items():
            for step in STEPS:
                kept = self._columns.setdefault((uuid, step), deque(maxlen=KEPT))
                first = kept[0][0] if kept else int(now // step)
                minutes = {int(time // 60): percent for time, percent in rows}
                before = [
                    (number, minutes[number * step // 60], 1)
                    for number in range(first - KEPT, first)
                    if number * step // 60 in minutes
                ]
                self._columns[uuid, step] = deque([*before, *kept], maxlen=KEPT)

    def columns(self, uuid: str, step: int, count: int, now: float) -> list[float | None]:
        """The last `count` of them, the newest at the end."""
        found = {number: total / samples for number, total, samples in self._columns.get((uuid, step), ())}
        last = int(now // step)
        return [found.get(number) for number in range(last - count + 1, last + 1)]


def past_utilization(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Of the broker's answers to `history`: by UUID, the minutes of which it knows the utilization."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["utilization"] is not None:
            found.setdefault(row["uuid"], []).append((row["time"], row["utilization"]))
    return found
