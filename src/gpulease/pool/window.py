"""PURE: how many items a worker has, how many more it may be given, and when some are taken back.

Sending items one by one wastes the time between them; sending many ahead lets some wait behind a long one. So a worker
gets about `AHEAD` seconds of work by what the function took so far, one item while nothing is known; and whatever it
has not begun can be taken back at any moment. Calls of 4 ms and more go one at a time.
"""

from __future__ import annotations

from typing import NamedTuple

AHEAD = 0.004  # seconds of work
DEEPEST = 128  # items
PATIENCE = 0.020  # seconds without a result after which unbegun items are taken back
WEIGHT = 0.2  # of the newest measurement


class Window(NamedTuple):
    """What one worker has. What is given is finished, or taken back and then skipped; each change is a new window."""

    in_flight: int = 0  # given, and neither finished nor taken back
    skipping: int = 0  # taken back; the worker has still to read them, and gets nothing new until then
    deepest: int = DEEPEST

    def room(self, seconds: float | None) -> int:
        """How many more that take `seconds` each. None before half is done: fewer, larger sends."""
        depth = self.depth(seconds)
        if self.skipping or self.in_flight > depth // 2:
            return 0
        return depth - self.in_flight

    def depth(self, seconds: float | None) -> int:
        if seconds is None:
            return 1
        return max(1, min(self.deepest, int(AHEAD / max(seconds, 1e-6))))

    def given(self, count: int) -> Window:
        return self._changed(self.in_flight + count, self.skipping)

    def finished(self) -> Window:
        return self._changed(self.in_flight - 1, self.skipping)

    def taken_back(self, count: int) -> Window:
        return self._changed(self.in_flight - count, self.skipping + count)

    def skipped(self) -> Window:
        return self._changed(self.in_flight, self.skipping - 1)

    def _changed(self, in_flight: int, skipping: int) -> Window:
        if in_flight < 0 or skipping < 0:
            raise ValueError(f"{self} cannot become in_flight={in_flight}, skipping={skipping}")
        return Window(in_flight, skipping, self.deepest)


def share(queued: int, workers: int) -> int:
    """The part of a queue that one worker may take, so that all of them begin."""
    return -(-queued // max(workers, 1))


def learn(known: float | None, measured: float) -> float:
    """An average that follows a change, upwards at once: too little ahead costs less than too much."""
    if known is None or measured > known * 8:
        return measured
    return known + WEIGHT * (measured - known)


def most_tries(retries: int) -> int:
    """How many workers an item may end: none of its own accord with `retries=0`, else one more than its tries.

    That last one is in a worker that did nothing before, so that a worn-out worker is not blamed on the item.
    """
    return 1 if retries == 0 else retries + 2
