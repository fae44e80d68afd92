"""What a crew has to know of its broker's state, and what its program is told while all workers wait in the line.

A small thread listens to the broker, since the reactor's must not wait for anybody. What it hears is told in the
reactor's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from gpulease.client.wait_notice import WaitNotice
from gpulease.errors import GpuleaseError
from gpulease.pool.slot import READY, STARTING, WorkerSlot

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.pool.crew import Crew
    from gpulease.pool.reactor import Reactor
    from gpulease.protocol.messages import StillWaiting

AGAIN = 1.0  # seconds before a broker that is not there is looked for again
LISTEN = 0.2  # seconds after which the thread sees whether it is still wanted


class BrokerWatch:
    """Subscribed at the broker of the crew's leases, as soon as it has one."""

    def __init__(self, reactor: Reactor, crew: Crew, on_line: Callable[[dict[str, Any]], None] | None) -> None:
        self._reactor, self._crew, self._on_line = reactor, crew, on_line
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpulease-pool-watch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Its thread is gone then, unless the broker hangs: for that nobody waits."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(AGAIN)

    def _run(self) -> None:
        while not self._ended.is_set():
            held = next((slot for slot in list(self._crew.slots) if slot.lease is not None), None)
            if held is None:
                self._ended.wait(LISTEN)
                continue
            try:
                self._listen(held.broker)
            except (GpuleaseError, OSError):
                self._ended.wait(AGAIN)  # no broker now: it will know what it knew when it is back

    def _listen(self, broker: str | None) -> None:
        from gpulease.client.connection import Client
        from gpulease.client.subscriptions import Subscription

        topics = ("leases",) if self._on_line is None else ("leases", "line")
        with Subscription(*topics, client=Client(start=False, directory=broker)) as subscription:
            while not self._ended.is_set():
                changed = subscription.receive(LISTEN) or {}
                if "leases" in changed:
                    self._find_ended(subscription.rows["leases"])
                if "line" in changed and self._on_line is not None:
                    self._reactor.call(partial(self._on_line, subscription.rows["line"]))

    def _find_ended(self, leases: dict[str, Any]) -> None:
        """A lease that was ended from outside: its worker's GPU may be somebody else's now."""
        from gpulease.client.connection import ask

        for slot in list(self._crew.slots):
            lease = slot.lease
            if lease is None or lease in leases or slot.state not in (READY, STARTING):
                continue
            if not ask("taken", at=slot.broker, id=lease)["taken"]:  # else it is so new that nobody was told yet
                self._reactor.call(partial(self._crew.renew, slot, lease))


# -------------------------------------------------------------------- while all wait


class WaitingWorkers:
    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._told: dict[WorkerSlot, StillWaiting] = {}
        self._waiting: WaitNotice | None = None

    def waits(self, slot: WorkerSlot, subscription: StillWaiting, crew: Iterable[WorkerSlot]) -> None:
        if any(other.lease for other in crew):
            return  # the work goes on
        self._waiting = self._waiting or WaitNotice(self._quiet)
        self._told[slot] = subscription
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
