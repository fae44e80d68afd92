"""`gpus="all-idle"`: a crew that grows with what is free, and shrinks when others wait or there is nothing to do.

To grow, one worker more than is ready stands in the machine's one line, behind everybody else; what it is granted was
idle. To shrink, a small thread asks the broker who waits: the reactor's must not wait for anybody.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Protocol

from gpulease.errors import GpuleaseError
from gpulease.pool.crew import Crew
from gpulease.pool.link import Link
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import EMPTY, READY, STARTING, Slot

LOOK = 1.0  # seconds between looks at the line
IDLE = 5.0  # seconds without work after which a worker is let go, down to one


class Work(Protocol):
    """What there is to do, and who is at it."""

    reactor: Reactor
    links: list[Link]

    def pending(self) -> int: ...

    def retire(self, name: str) -> None: ...


class AlwaysBusy:
    """For a named pool, which does not see what programs do with its workers: it keeps warm whatever is idle."""

    def __init__(self, reactor: Reactor) -> None:
        self.reactor = reactor
        self.links: list[Link] = []

    def pending(self) -> int:
        return 1

    def retire(self, name: str) -> None:
        """Programs take back what the worker has not begun, once it is gone."""


class Elastic:
    def __init__(self, crew: Crew, engine: Work, priority: int, each: int) -> None:
        self._crew, self._engine = crew, engine
        self._priority, self._each = priority, each
        self._idle_looks = 0
        self._given: dict[str, int] = {}  # request in the line -> GPUs that were let go for it, once
        self._ended = threading.Event()

    def begin(self) -> None:
        self._crew.add()
        threading.Thread(target=self._look, name="gpulease-pool-line", daemon=True).start()

    def grow(self) -> None:
        """After a worker became ready, or new work came: one more into the line, if there is work for it."""
        if any(slot.state == STARTING for slot in self._crew.slots) or not self._engine.pending():
            return
        empty = next((slot for slot in self._crew.slots if slot.state == EMPTY and not slot.failures), None)
        if empty is not None:
            self._crew.fill(empty)
        else:
            self._crew.add()

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            try:
                waiting = self._others_in_line()
            except (GpuleaseError, OSError):
                continue  # no broker now: nobody waits
            self._engine.reactor.call(partial(self._adapt, waiting))

    def _others_in_line(self) -> dict[str, int]:
        """Requests ahead of ours, and the GPUs that each wants."""
        from gpulease.client import Client

        client = Client(start=False)
        try:
            line: list[dict[str, Any]] = client.ask("status")["line"]
        finally:
            client.close()
        return {entry["id"]: entry["gpus"] for entry in line if entry["priority"] < self._priority}

    def _adapt(self, waiting: dict[str, int]) -> None:
        if self._ended.is_set():
            return
        idle = [link for link in self._engine.links if not link.in_flight]
        busy = bool(self._engine.pending()) or len(idle) < len(self._engine.links)
        self._idle_looks = 0 if busy else self._idle_looks + 1
        wanted = sum(gpus for id, gpus in waiting.items() if id not in self._given)
        self._given = waiting
        if wanted:
            self._let_go(-(-wanted // self._each))
        elif not busy and self._idle_looks * LOOK >= IDLE:
            self._let_go(1)
        else:
            self.grow()

    def _let_go(self, count: int) -> None:
        """Retire workers, idle ones first; the last one stays, so that the work goes on."""
        for slot in self._crew.slots:
            if slot.state == STARTING:
                slot.stop()
        ready = [slot for slot in self._crew.slots if slot.state == READY]
        ready.sort(key=self._load)
        for slot in ready[: min(count, len(ready) - 1)]:
            self._engine.retire(slot.name)
            slot.stop()

    def _load(self, slot: Slot) -> int:
        return next((len(link.in_flight) for link in self._engine.links if link.name == slot.name), 0)
