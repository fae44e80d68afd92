"""The broker's time: Unix seconds that never go back while the machine is up, whatever happens to the wall clock."""

from __future__ import annotations

import os
import time

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
