"""The pool's own workers on this machine: a crew whose workers serve one engine, in one thread."""

from __future__ import annotations

from gpulease.errors import GpuleaseError
from gpulease.pool.crew import Crew
from gpulease.pool.engine import Engine
from gpulease.pool.failures import Ending
from gpulease.pool.link import SocketLink
from gpulease.pool.log import Log
from gpulease.pool.plan import PoolPlan, check_devices
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import WorkerSlot


def start_here(plan: PoolPlan, log: Log, retries: int) -> Engine:
    """Raises NotEnoughDevices where the plan can never be had."""
    check_devices(plan)
    return Local(plan, log, retries).engine


class Local:
    def __init__(self, plan: PoolPlan, log: Log, retries: int) -> None:
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, log, retries)
        self._log = log
        self._links: dict[WorkerSlot, SocketLink] = {}
        crew = self.engine.source = Crew(self.reactor, log, self, plan, self.engine)
        self.reactor.call(crew.begin)  # there, since workers end with the thread that started them
        self.reactor.start()

    # ---------------------------------------------------------------- what the crew tells

    def worker_ready(self, slot: WorkerSlot) -> None:
        link = self._links[slot] = SocketLink(slot.name, slot.gpus, *slot.open_session(), self.reactor)
        self.engine.joined(link)

    def worker_waits(self, slot: WorkerSlot) -> None:
        self.engine.check_finished()

    def worker_retires(self, slot: WorkerSlot) -> None:
        self.engine.retire(slot.name)

    def worker_gone(self, slot: WorkerSlot, ending: Ending) -> None:
        link = self._links.pop(slot, None)
        if link is not None:
            self.engine.left(link, ending)

    def crew_broken(self, error: GpuleaseError) -> None:
        self.engine.broken(error)

    def crew_gone(self) -> None:
        self._log.close()
        self.reactor.stop()
