"""Notices that a worker's lease was ended from outside, as by `gpulease release`: then its GPU may be somebody else's.

The broker tells nobody. So a small thread asks it now and then: the reactor's must not wait for anybody.
"""

from __future__ import annotations

import threading
from functools import partial

from gpulease.errors import GpuleaseError
from gpulease.pool.crew import Crew
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import READY, STARTING

LOOK = 1.0  # seconds between looks


class LeaseWatch:
    def __init__(self, crew: Crew, reactor: Reactor) -> None:
        self._crew, self._reactor = crew, reactor
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        self._thread = threading.Thread(target=self._look, name="gpulease-pool-leases", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Its thread is gone then, unless the broker hangs: for that nobody waits."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(LOOK)

    def _look(self) -> None:
        while not self._ended.wait(LOOK):
            held = {
                slot.lease: (slot, slot.broker)
                for slot in list(self._crew.slots)
                if slot.lease is not None and slot.state in (READY, STARTING)
            }
            for lease, (slot, broker) in held.items():
                if _is_over(lease, broker):
                    self._reactor.call(partial(self._crew.renew, slot, lease))


def _is_over(lease: str, broker: str | None) -> bool:
    """Only where its own broker says so: one that cannot be asked now will know the lease when it is back."""
    from gpulease.client import Client

    try:
        client = Client(start=False, directory=broker)
        try:
            return not client.ask("taken", id=lease)["taken"]
        finally:
            client.close()
    except (GpuleaseError, OSError):
        return False
