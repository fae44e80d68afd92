"""Tells a program on stderr that the workers of its pool wait in the line, while none of them has a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpulease.client.waiting import WaitNotice
from gpulease.pool.slot import WorkerSlot

if TYPE_CHECKING:
    from gpulease.protocol.messages import StillWaiting


class WaitingWorkers:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._told: dict[WorkerSlot, StillWaiting] = {}
        self._waiting: WaitNotice | None = None

    def waits(self, slot: WorkerSlot, told: StillWaiting, crew: Iterable[WorkerSlot]) -> None:
        if any(other.lease for other in crew):
            return  # the work goes on
        self._waiting = self._waiting or WaitNotice(self._quiet)
        self._told[slot] = told
        if self._waiting.tell is not None:
            self._waiting.tell(min(self._told.values(), key=lambda one: one["place"]))

    def got(self, gpus: str) -> None:
        self._told.clear()
        self._end(gpus)

    def gone(self, slot: WorkerSlot) -> None:
        self._told.pop(slot, None)
        if not self._told:
            self._end(None)

    def _end(self, gpus: str | None) -> None:
        if self._waiting is not None:
            self._waiting.end(gpus)
            self._waiting = None
