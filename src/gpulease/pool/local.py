"""The pool's own workers on this machine: puts reactor, crew and engine together."""

from __future__ import annotations

import os
import sys
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.pool import context
from gpulease.pool.crew import Crew
from gpulease.pool.elastic import Elastic
from gpulease.pool.engine import Engine
from gpulease.pool.failures import Ending
from gpulease.pool.link import SocketLink
from gpulease.pool.log import Log
from gpulease.pool.pickling import to_body
from gpulease.pool.plan import Plan, check_devices
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import Slot
from gpulease.pool.watching import LeaseWatch


def start_here(plan: Plan, log: Log, retries: int) -> Engine:
    """Raises NotEnoughDevices where the plan can never be had."""
    check_devices(plan)
    return Local(plan, log, retries).engine


class Local:
    """A crew whose workers serve one engine, in one thread."""

    def __init__(self, plan: Plan, log: Log, retries: int) -> None:
        setup, memory = make_setup(plan)
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, log, retries)
        self._log = log
        self._links: dict[Slot, SocketLink] = {}
        self.crew = Crew(self.reactor, log, self, setup, memory)
        self._memory = memory
        self.engine.source = self.crew
        self._plan = plan._replace(shared=None)  # the copy in shared memory is the one that is kept
        self._elastic: Elastic | None = None
        self._watch = LeaseWatch(self.crew, self.reactor)
        self.reactor.call(self._begin)
        self.reactor.start()

    def _begin(self) -> None:
        nested = nested_devices(self._plan)
        if not nested:
            self._watch.begin()
        if self._plan.elastic:
            request = self._plan.request
            self._elastic = Elastic(self.crew, self.engine, request["priority"], request["gpus"])
            self.engine.on_waiting = self._elastic.grow
            return self._elastic.begin()
        for number in range(self._plan.workers):
            self.crew.add(nested[number] if nested else None)

    # ---------------------------------------------------------------- what the crew tells

    def worker_ready(self, slot: Slot) -> None:
        link = self._links[slot] = SocketLink(slot.name, slot.gpus, *slot.open_session(), self.reactor)
        self.engine.joined(link)
        if self._elastic is not None:
            self._elastic.grow()

    def worker_waits(self, slot: Slot) -> None:
        self.engine.check_finished()

    def worker_retires(self, slot: Slot) -> None:
        self.engine.retire(slot.name)

    def worker_gone(self, slot: Slot, ending: Ending) -> bool:
        link = self._links.pop(slot, None)
        return link is not None and self.engine.left(link, ending)

    def crew_broken(self, error: GpuleaseError) -> None:
        self.engine.broken(error)

    def crew_gone(self) -> None:
        if self._memory is not None:
            os.close(self._memory)
            self._memory = None
        if self._elastic is not None:
            self._elastic.end()
        self._watch.end()
        self._log.close()
        self.reactor.stop()


def make_setup(plan: Plan) -> tuple[dict[str, Any], int | None]:
    """What each worker is told at its start, and the memory with what all of them share."""
    shared, memory = (b"", None) if plan.shared is None else to_body(plan.shared)
    setup = {
        "request": dict(plan.request),
        "gpus": "",
        "uuids": (),
        "environ": {},
        "path": list(sys.path),
        "init": plan.init,
        "shared": shared,
    }
    return setup, memory


def nested_devices(plan: Plan) -> list[dict[str, Any]]:
    """In a worker of another pool: its own devices, divided. A lease of their own would wait for what it holds."""
    above = context.inside()
    if above is None:
        return []
    each = plan.request.get("gpus", 1)
    labels = above.gpus.split(",")
    return [
        {
            "request": None,
            "gpus": ",".join(labels[number * each : (number + 1) * each]),
            "uuids": above.uuids[number * each : (number + 1) * each],
            "environ": {"CUDA_VISIBLE_DEVICES": ",".join(above.uuids[number * each : (number + 1) * each])},
        }
        for number in range(plan.workers)
    ]
