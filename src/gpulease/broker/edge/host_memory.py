"""The host's memory, read at most a few times a second."""

from __future__ import annotations

from gpulease.model.values import HostMemory
from gpulease.system.host import read_memory

KEPT = 0.2  # seconds that a reading serves


class CachedMemory:
    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._last = HostMemory()

    def now(self, now: float) -> HostMemory:
        if not self._read_at <= now < self._read_at + KEPT:
            self._read_at, self._last = now, read_memory()
        return self._last
