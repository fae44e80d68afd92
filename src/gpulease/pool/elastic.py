"""`gpus="all-idle"`: a crew that grows with what is free, and shrinks when others wait or there is nothing to do.

To grow, one worker more than is ready stands in the machine's one line, behind everybody else; what it is granted was
idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulease.pool.slot import EMPTY, READY, STARTING, WorkerSlot
from gpulease.pool.watching import LineWatch

if TYPE_CHECKING:
    from gpulease.pool.crew import Crew
    from gpulease.pool.engine import Engine
    from gpulease.pool.link import Link
    from gpulease.pool.plan import PoolPlan
    from gpulease.pool.reactor import Reactor

LOOK = 1.0  # seconds between looks at whether there is work
IDLE = 5.0  # seconds without work after which a worker is let go, down to one


class Elastic:
    """`engine` is None for a named pool, which does not see what programs do: it keeps warm whatever is idle."""

    def __init__(self, crew: Crew, reactor: Reactor, plan: PoolPlan, engine: Engine | None) -> None:
        self._crew, self._engine, self._reactor = crew, engine, reactor
        self._each: int = plan.request["gpus"]
        self._idle_looks = 0
        self._given: dict[str, int] = {}  # request in the line -> GPUs that were let go for it, once
        self._watch = LineWatch(reactor, plan.request["priority"], self._heard)
        self._over = False

    def begin(self) -> None:
        if self._engine is not None:
            self._engine.on_waiting = self.grow
        self._crew.add()
        self._watch.begin()
        self._reactor.later(LOOK, self._look)

    def end(self) -> None:
        self._over = True
        self._watch.end()

    def grow(self) -> None:
        """After a worker became ready, or new work came: one more into the line, if there is work for it."""
        if any(slot.state == STARTING for slot in self._crew.slots) or not self._is_pending():
            return
        empty = next((slot for slot in self._crew.slots if slot.state == EMPTY and not slot.renewing), None)
        if empty is not None:
            self._crew.fill(empty)
        else:
            self._crew.add()

    def _is_pending(self) -> bool:
        return self._engine is None or self._engine.pending() > 0

    def _is_busy(self) -> bool:
        return self._is_pending() or any(link.in_flight for link in self._links())

    def _links(self) -> list[Link]:
        return [] if self._engine is None else self._engine.links

    def _heard(self, waiting: dict[str, int]) -> None:
        """Who stands ahead of ours in the line: for each of them workers are let go, once."""
        wanted = sum(gpus for id, gpus in waiting.items() if id not in self._given)
        self._given = waiting
        if wanted and not self._over:
            self._let_go(-(-wanted // self._each))

    def _look(self) -> None:
        if self._over:
            return
        self._idle_looks = 0 if self._is_busy() else self._idle_looks + 1
        if self._idle_looks * LOOK >= IDLE:
            self._let_go(1)
        elif not self._given:
            self.grow()
        self._reactor.later(LOOK, self._look)

    def _let_go(self, count: int) -> None:
        """Retire workers, idle ones first; the last one stays, so that the work goes on."""
        for slot in self._crew.slots:
            if slot.state == STARTING:
                slot.stop()
        ready = [slot for slot in self._crew.slots if slot.state == READY]
        ready.sort(key=self._load)
        for slot in ready[: min(count, len(ready) - 1)]:
            self._crew.retire(slot)

    def _load(self, slot: WorkerSlot) -> int:
        return next((len(link.in_flight) for link in self._links() if link.name == slot.name), 0)
