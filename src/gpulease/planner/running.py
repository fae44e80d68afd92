"""What runs beside the devices: how many of one sweep, which may have a cap, and how many that need no device.

Not here: devices and quotas. A cap keeps its own sweep back and nobody else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpulease.model.values import Lease, Waiting
from gpulease.planner.policy import UNLIMITED

NO_CAPS: Mapping[int, int] = {}


class RunningCounts:
    """Counted from the leases, and on as a plan grants."""

    def __init__(self, leases: Iterable[Lease], caps: Mapping[int, int], slots: int) -> None:
        self.caps, self.slots = caps, slots
        self.capped: Counter[int] = Counter()
        self.without_device: Counter[str] = Counter()  # by user
        for lease in leases:
            self._count(lease.cap, None if lease.devices else lease.owner.user)

    def copy(self) -> RunningCounts:
        other = RunningCounts((), self.caps, self.slots)
        other.capped, other.without_device = self.capped.copy(), self.without_device.copy()
        return other

    def add(self, waiting: Waiting) -> None:
        self._count(waiting.cap, None if waiting.request.gpus else waiting.user)

    def _count(self, cap: int | None, user: str | None) -> None:
        if cap is not None:
            self.capped[cap] += 1
        if user is not None:
            self.without_device[user] += 1

    def left(self, cap: int | None) -> int:
        """How many more of a sweep may start."""
        if cap is None or cap not in self.caps:
            return UNLIMITED
        return max(0, self.caps[cap] - self.capped[cap])

    @property
    def free_slots(self) -> int:
        """How many more that need no device may start."""
        return max(0, self.slots - self.without_device.total())
