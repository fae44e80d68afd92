"""What the pool has to know of its broker's state: leases that ended, and who else waits.

A small thread listens to the broker, since the reactor's must not wait for anybody. Whoever is told hears it in the
reactor's thread.
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
    from gpulease.pool.slot import WorkerSlot

AGAIN = 1.0  # seconds before a broker that is not there is looked for again
LISTEN = 0.2  # seconds after which the thread sees whether it is still wanted


class _Watch:
    """Subscribed to one topic, at the broker that `_broker` names once it can."""

    topic: str

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
            self._thread.join(AGAIN)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._listen()
            except (GpuleaseError, OSError):
                self._ended.wait(AGAIN)  # no broker now: it will know what it knew when it is back

    def _listen(self) -> None:
        from gpulease.client import Client
        from gpulease.subscription import Subscription

        known, broker = self._broker()
        if not known:
            self._ended.wait(LISTEN)
            return
        with Subscription(self.topic, client=Client(start=False, directory=broker)) as told:
            while not self._ended.is_set():
                if told.receive(LISTEN):
                    self._heard(told.rows.get(self.topic, {}))

    def _broker(self) -> tuple[bool, str | None]:
        """Whether it is known, and where it is; None for the one that commands would use."""
        return True, None

    def _heard(self, rows: dict[str, Any]) -> None:
        raise NotImplementedError


class Holders(Protocol):
    """Workers that hold leases."""

    slots: list[WorkerSlot]

    def renew(self, slot: WorkerSlot, lease: str) -> None: ...


class LeaseWatch(_Watch):
    """Tells that a worker's lease was ended from outside: then its GPU may be somebody else's."""

    topic = "leases"

    def __init__(self, reactor: Reactor, holders: Holders) -> None:
        super().__init__(reactor)
        self._holders = holders

    def _broker(self) -> tuple[bool, str | None]:
        held = [slot for slot in list(self._holders.slots) if slot.lease is not None]
        return (True, held[0].broker) if held else (False, None)

    def _heard(self, rows: dict[str, Any]) -> None:
        for slot in list(self._holders.slots):
            lease = slot.lease
            if lease is None or lease in rows or slot.state not in (READY, STARTING):
                continue
            if not _is_held(slot.broker, lease):  # else it is so new that the broker has not told of it yet
                self._reactor.call(partial(self._holders.renew, slot, lease))


class LineWatch(_Watch):
    """Tells which requests stand ahead of ours in the line, and how many GPUs each wants."""

    topic = "line"

    def __init__(self, reactor: Reactor, priority: int, told: Callable[[dict[str, int]], None]) -> None:
        super().__init__(reactor)
        self._priority, self._told = priority, told

    def _heard(self, rows: dict[str, Any]) -> None:
        waiting = {id: row["gpus"] for id, row in rows.items() if row["priority"] < self._priority}
        self._reactor.call(partial(self._told, waiting))


def _is_held(directory: str | None, lease: str) -> bool:
    from gpulease.client import Client

    client = Client(start=False, directory=directory)
    try:
        return bool(client.ask("taken", id=lease)["taken"])
    finally:
        client.close()
