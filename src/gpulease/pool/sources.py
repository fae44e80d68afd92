"""Where an engine's workers come from on this machine: a group of the pool's own, or a named pool of the same user."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from typing import Any

from gpulease.errors import GpuleaseError, PoolBroken, PoolClosed
from gpulease.pool import places
from gpulease.pool.engine import Engine, OnStart, Source
from gpulease.pool.failures import Ending
from gpulease.pool.link import Receiver, SocketLink, pack_json
from gpulease.pool.log import Log
from gpulease.pool.plan import PoolPlan, SharedData, check_devices
from gpulease.pool.reactor import Reactor
from gpulease.pool.slot import WorkerSlot
from gpulease.pool.worker_group import WorkerGroup, WorkerGroupOwner


class Local(WorkerGroupOwner):
    """The pool's own workers: a group that serves one engine, in one thread."""

    def __init__(self, plan: PoolPlan, log: Log, retries: int, on_start: OnStart | None = None) -> None:
        """Raises NotEnoughDevices if this machine can never serve the plan."""
        check_devices(plan)
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, log, retries, on_start)
        self._log = log
        self._links: dict[WorkerSlot, SocketLink] = {}
        group = self.engine.source = WorkerGroup(self.reactor, log, self, plan, self.engine)
        self.reactor.call(group.begin)  # there, since workers end with the thread that started them
        self.reactor.start()

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


class Named(Source):
    """Workers come and go as the pool's process tells. It stays when this program is done with it."""

    def __init__(
        self, name: str, retries: int, shared: SharedData | None = None, on_start: OnStart | None = None
    ) -> None:
        self.name = name
        self._socket = places.connect(name)
        self._shared = shared
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, Log(), retries, on_start)
        self.engine.source = self
        self._socket.sendall(pack_json({"do": "connect", "python": list(sys.version_info[:2])}))
        self._socket.setblocking(False)
        self._receiver = Receiver(self._socket)
        self._links: dict[str, SocketLink] = {}
        self._stopping = False  # somebody has told it to end
        self.reactor.watch(self._socket.fileno(), self._read)
        self.reactor.start()

    def grow(self, gpus: int, request: Mapping[str, Any]) -> None:
        places.ask(self.name, "grow", gpus=gpus, request=dict(request))

    def stop(self) -> None:
        self._left_all(Ending())
        self.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._receiver.close()
        self._shared = None
        self.reactor.stop()

    def _read(self) -> None:
        try:
            for frame in self._receiver.receive():
                self._told(json.loads(frame.body), frame.descriptors)
        except BlockingIOError:
            pass
        except EOFError:
            self._ended()

    def _told(self, message: dict[str, Any], descriptors: tuple[int, ...]) -> None:
        if "joined" in message:
            connected, tokens = descriptors
            name = message["joined"]["name"]
            link = SocketLink(name, message["joined"]["gpus"], socket.socket(fileno=connected), tokens, self.reactor)
            link.exclusive = False
            if self._shared is not None and self._shared.body:
                link.share(self._shared.body, self._shared.memory)
            self._links[name] = link
            self.engine.joined(link)
        elif "left" in message:
            gone = self._links.pop(message["left"]["name"], None)
            if gone is not None:
                self.engine.left(gone, Ending(*message["left"]["ending"]))
        elif "retiring" in message:
            self.engine.retire(message["retiring"]["name"])
        elif "stopping" in message:
            self._stopping = True
        elif "broken" in message or "error" in message:
            trouble = message.get("broken") or message["error"]
            self.engine.broken(PoolBroken(trouble["what"], trouble["next_step"]))

    def _left_all(self, ending: Ending) -> None:
        while self._links:
            self.engine.left(self._links.popitem()[1], ending)

    def _ended(self) -> None:
        """The pool's process is gone, and its workers with it."""
        self.reactor.unwatch(self._socket.fileno())
        how = "was stopped" if self._stopping else "ended unexpectedly"
        see = "" if self._stopping else f"; `gpulease pool log {self.name}` may say why"
        again = f"Start it again: gpulease pool start {self.name}{see}."
        self.engine.broken(PoolClosed(f"The pool {self.name!r} {how}.", again))
        self._left_all(Ending(reported="ended with its pool"))
