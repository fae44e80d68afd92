"""Tells whoever follows a job that it waits, why, and its place, until it starts."""

from __future__ import annotations

import time

from gpulease.api.jobs import show
from gpulease.api.lease_verbs import explain
from gpulease.client.waiting import WaitNotice
from gpulease.errors import NotFound, WrongState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.model.job_selection import JobId
    from gpulease.protocol.messages import JobRow

UNSTARTED = ("waiting", "held")
AGAIN = 2.0  # seconds until its place is asked for again


class JobInLine:
    def __init__(self, id: JobId) -> None:
        self._id = id
        self._waiting: WaitNotice | None = None
        self._next = 0.0

    def look(self, rows: dict[str, Any] | None) -> None:
        """`rows`: what a subscription tells of jobs; of one that has never run it tells nothing."""
        row = None if rows is None else rows.get(str(self._id))
        if row is not None and row["state"] not in UNSTARTED:
            return self._end()
        if rows is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + AGAIN
        self._waiting = self._waiting or WaitNotice(log=True)
        try:
            self._tell(self._waiting, show(self._id)[0])
        except (NotFound, WrongState):
            pass  # it was removed or has started, which is told next

    def _tell(self, waiting: WaitNotice, job: JobRow) -> None:
        if job["state"] == "held":
            return waiting.say(f"job {self._id} is held.", job["why"] or "")
        told = explain(self._id)
        if told["lease"] is None:
            waiting.say(f"job {self._id} waits, number {told['place']} in the line.", told["why"] or "")

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None
