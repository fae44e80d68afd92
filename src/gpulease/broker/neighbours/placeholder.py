"""The broker's side of placeholders: one child for a device, started, waited for with a deadline, and ended.

If CUDA gives none, the device is granted without one: the log says so once, and the broker tries again after a pause.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import NamedTuple

from gpulease.broker.child import Child
from gpulease.broker.core.events import ProcessKey
from gpulease.model.quantities import pause_after

PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds before a device on which none could be placed is tried again
SOON = 0.1  # seconds before one is started: a lease that is over by then needs none
KNOWN = 60.0  # seconds that one that ended is known: a sample may be older than its end


class Failure(NamedTuple):
    why: str
    until: float  # when it is tried again
    times: int  # in a row


class Placeholders:
    def __init__(
        self, poll: select.epoll, seconds: float, changed: Callable[[], None], log: Callable[[str], None]
    ) -> None:
        self._poll, self._seconds, self._changed, self._log = poll, seconds, changed, log
        self._coming: dict[str, float] = {}  # devices that are to have one, and when it is started
        self._placed: dict[str, Child] = {}  # by device; `due` until it has said that it is there
        self._ended: dict[ProcessKey, tuple[str, float]] = {}  # device, and when
        self._failures: dict[str, Failure] = {}

    # ---------------------------------------------------------------- what is there

    @property
    def devices(self) -> frozenset[str]:
        """With one, or with one that is being placed."""
        return frozenset((*self._placed, *self._coming))

    @property
    def placing(self) -> frozenset[str]:
        return frozenset((*self._coming, *(uuid for uuid, one in self._placed.items() if one.due is not None)))

    @property
    def pids(self) -> dict[str, int]:
        return {uuid: one.key[0] for uuid, one in self._placed.items()}

    @property
    def failures(self) -> dict[str, str]:
        """Devices without one, and why."""
        return {uuid: failure.why for uuid, failure in self._failures.items() if uuid not in self._placed}

    def keys(self, now: float) -> dict[ProcessKey, str]:
        """All processes that may be seen on a device, or may have been a moment ago."""
        self._ended = {key: one for key, one in self._ended.items() if now - one[1] < KNOWN}
        return {one.key: uuid for uuid, one in self._placed.items()} | {key: one[0] for key, one in self._ended.items()}

    def may_place(self, uuid: str, now: float) -> bool:
        return uuid not in self.devices and (uuid not in self._failures or now >= self._failures[uuid].until)

    # ---------------------------------------------------------------- starting and ending

    def place(self, uuid: str, now: float) -> None:
        self._coming[uuid] = now + SOON

    def _start(self, uuid: str, now: float) -> None:
        del self._coming[uuid]
        child = Child(self._poll, ["gpulease.broker.children.placeholder", uuid])
        try:
            child.start()
        except OSError as trouble:
            return self._fail(uuid, f"it cannot be started: {trouble.strerror}", now)
        child.due = now + self._seconds
        self._placed[uuid] = child
        return self._changed()

    def end(self, uuid: str, now: float) -> None:
        if self._coming.pop(uuid, None) is not None:
            return
        one = self._placed.pop(uuid)
        one.close()
        self._ended[one.key] = (uuid, now)
        self._changed()

    def close(self) -> None:
        for uuid in list(self._placed):
            self.end(uuid, 0.0)

    # ---------------------------------------------------------------- what they say

    @property
    def due(self) -> float | None:
        dues = (one.due for one in self._placed.values() if one.due is not None)
        return min((*dues, *self._coming.values()), default=None)

    def overdue(self, now: float) -> None:
        for uuid in [uuid for uuid, moment in self._coming.items() if moment <= now]:
            self._start(uuid, now)
        for uuid, one in list(self._placed.items()):
            if one.due is not None and one.due <= now:
                self._fail(uuid, f"CUDA made no context within {self._seconds:g} s", now)

    def owns(self, descriptor: int) -> bool:
        return any(one.descriptor == descriptor for one in self._placed.values())

    def ready(self, descriptor: int, now: float) -> None:
        uuid, child = next((uuid, one) for uuid, one in self._placed.items() if one.descriptor == descriptor)
        said = child.read().decode(errors="replace").strip()
        if said == "placed":
            child.due = None
            self._failures.pop(uuid, None)
            self._changed()
        else:
            self._fail(uuid, said.removeprefix("failed ")[:200] or "its process ended unexpectedly", now)

    def _fail(self, uuid: str, why: str, now: float) -> None:
        before = self._failures.get(uuid)
        times = 1 if before is None else before.times + 1
        self._failures[uuid] = Failure(why, now + pause_after(times, PAUSE, LONGEST_PAUSE), times)
        if before is None or before.why != why:
            self._log(f"no placeholder on {uuid}, which safe-gpu may take for free: {why}")
        if uuid in self._placed:
            self.end(uuid, now)
        else:
            self._changed()
