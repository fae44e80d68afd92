"""`gpus="all-idle"`: a crew that grows with what is free, and shrinks when others wait.

To grow, one worker more than is ready stands in the machine's one line, behind everybody else; what it is granted was
idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpulease.pool.slot import EMPTY, READY, STARTING, WorkerSlot

if TYPE_CHECKING:
    from gpulease.pool.crew import Crew
    from gpulease.pool.engine import Engine
    from gpulease.pool.plan import PoolPlan


class Elastic:
    """`engine` is None for a named pool, which does not see what programs do: it keeps warm whatever is idle."""

    def __init__(self, crew: Crew, plan: PoolPlan, engine: Engine | None) -> None:
        self._crew, self._engine = crew, engine
        self._each: int = plan.request["gpus"]
        self._priority: int = plan.request["priority"]
        self._given: dict[str, int] = {}  # request in the line -> GPUs that were let go for it, once
        if engine is not None:
            engine.on_waiting = self.grow

    def grow(self) -> None:
        """After a worker became ready, new work came, or nobody waits any more: one more into the line."""
        starting = any(slot.state == STARTING for slot in self._crew.slots)
        if starting or (self._engine is not None and not self._engine.pending()):
            return
        empty = next((slot for slot in self._crew.slots if slot.state == EMPTY and not slot.renewing), None)
        if empty is not None:
            self._crew.fill(empty)
        else:
            self._crew.add()

    def heard(self, line: dict[str, Any]) -> None:
        """Who stands ahead of ours in the line: for each of them workers are let go, once."""
        before = self._given
        self._given = {id: row["gpus"] for id, row in line.items() if row["priority"] < self._priority}
        wanted = sum(gpus for id, gpus in self._given.items() if id not in before)
        if wanted:
            self._let_go(-(-wanted // self._each))
        elif not self._given:
            self.grow()

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
        links = [] if self._engine is None else self._engine.links
        return next((len(link.in_flight) for link in links if link.name == slot.name), 0)
