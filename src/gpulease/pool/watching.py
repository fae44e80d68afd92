"""What the pool has to know of its broker's state: leases that ended, and who else waits.

The broker tells nobody of changes. So a small thread asks it now and then: the reactor's must not wait for anybody.
Whoever is told hears it in the reactor's thread, and need not know how it was learned.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gpulease.errors import GpuleaseError
from gpulease.pool.slot import READY, STARTING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.pool.reactor import Reactor
    from gpulease.pool.slot import Slot

LOOK = 1.0  # seconds between looks


class _Watch:
    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpulease-pool-watch", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Its thread is gone then, unless the broker hangs: for that nobody waits."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LOOK)

    def _run(self) -> None:
        while not self._ended.wait(LOOK):
            try:
                self._look()
            except (GpuleaseError, OSError):
                continue  # no broker now: it will know what it knew when it is back

    def _look(self) -> None:
        raise NotImplementedError


class Holders(Protocol):
    """Workers that hold leases."""

    slots: list[Slot]

    def renew(self, slot: Slot, lease: str) -> None: ...


class LeaseWatch(_Watch):
    """Tells that a worker's lease was ended from outside: then its GPU may be somebody else's."""

    def __init__(self, reactor: Reactor, holders: Holders) -> None:
        super().__init__(reactor)
        self._holders = holders

    def _look(self) -> None:
        for slot in list(self._holders.slots):
            lease = slot.lease
            if lease is None or slot.state not in (READY, STARTING):
                continue
            if not _ask(slot.broker, "taken", id=lease)["taken"]:
                self._reactor.call(partial(self._holders.renew, slot, lease))


class LineWatch(_Watch):
    """Tells which requests stand ahead of ours in the line, and how many GPUs each wants."""

    def __init__(self, reactor: Reactor, priority: int, told: Callable[[dict[str, int]], None]) -> None:
        super().__init__(reactor)
        self._priority, self._told = priority, told

    def _look(self) -> None:
        line = _ask(None, "status")["line"]
        waiting = {entry["id"]: entry["gpus"] for entry in line if entry["priority"] < self._priority}
        self._reactor.call(partial(self._told, waiting))


def _ask(directory: str | None, verb: str, **fields: object) -> Any:
    from gpulease.client import Client

    client = Client(start=False, directory=directory)
    try:
        return client.ask(verb, **fields)
    finally:
        client.close()
