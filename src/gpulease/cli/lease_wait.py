"""Wait for a lease, as `run`, `get` and `shell` do, or for a job, and show the reason meanwhile."""

from __future__ import annotations

import sys
import time

from gpulease.api.jobs import show
from gpulease.api.lease_verbs import explain
from gpulease.client.connection import acquire
from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import NotFound, WrongState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.client.engines import BackendConnection
    from gpulease.model.job_selection import JobId
    from gpulease.protocol.messages import Granted, JobRow


def wait_for(fields: dict[str, Any], quiet: bool = False) -> tuple[Granted, BackendConnection]:
    """What was granted. Says nothing when it is granted at once."""
    waiting, labels = WaitNotice(quiet, log=True), None
    try:
        granted, client = acquire(fields, waiting.tell)
        labels = ",".join(device["label"] for device in granted["devices"])
    finally:
        waiting.end(labels)
    if not quiet and granted["until"] is not None and fields["kind"] != "reservation":
        _tell_end(granted["until"] - granted["since"])
    return granted, client


def _tell_end(seconds: float) -> None:
    """Nobody asked for it, so nobody would expect it."""
    from gpulease.render.times import span

    print(f"gpulease: this lease ends after {span(seconds)}, by the limit `longest-lease`.", file=sys.stderr)


def environment_of(granted: Granted, visible_by: str | None) -> dict[str, str]:
    """The variables with which a command sees just its devices, and knows its lease."""
    import os
    from types import SimpleNamespace

    from gpulease.model.visible import variables, wanted

    devices = [SimpleNamespace(**device) for device in granted["devices"]]
    labels = ",".join(device.label for device in devices)
    by = wanted(visible_by, os.environ) or granted.get("visible")
    return {"GPULEASE_LEASE": granted["id"], "GPULEASE_DEVICES": labels, **variables(devices, by)}


# -------------------------------------------------------------------- for a job

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
        reply = explain(self._id)
        if reply["lease"] is None:
            waiting.say(f"job {self._id} waits, number {reply['place']} in the queue.", reply["why"] or "")

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None
