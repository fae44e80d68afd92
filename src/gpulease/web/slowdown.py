"""Wrong tokens are answered late: each one later than the last, so that guessing gets nowhere.

Who has the right token is never kept waiting. Of those who wait there are only so many: more are refused at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gpulease.model.pauses import pause_after

FIRST, MOST = 0.25, 8.0  # seconds
FORGET = 60.0  # seconds without a wrong one, after which the next counts as the first
WAITING = 64


class Slowdown:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong, self._last, self._waiting = 0, 0.0, 0

    def next_delay(self) -> float | None:
        """Of a wrong one that came now; None when too many wait already."""
        if self._waiting >= WAITING:
            return None
        now = self._now()
        if now - self._last > FORGET:
            self._wrong = 0
        self._wrong, self._last = self._wrong + 1, now
        return pause_after(self._wrong, FIRST, MOST)

    async def wait(self) -> bool:
        """Whether it was waited; not, when too many do."""
        delay = self.next_delay()
        if delay is None:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
        return True
