"""The workers of a named pool, used from another program of the same user."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from gpulease.errors import PoolBroken, PoolClosed
from gpulease.pool import frames
from gpulease.pool import pool_places as places
from gpulease.pool.engine import Engine
from gpulease.pool.failures import Ending
from gpulease.pool.frames import Receiver
from gpulease.pool.link import SocketLink
from gpulease.pool.log import Log
from gpulease.pool.reactor import Reactor

ANSWER = 30.0  # seconds


def ask(name: str, verb: str) -> dict[str, Any]:
    """One question to a named pool, one answer."""
    with places.connect(name) as connected:
        connected.settimeout(ANSWER)
        connected.sendall(frames.pack_json({"do": verb}))
        receiver = Receiver(connected)
        try:
            while not (received := receiver.receive()):
                pass
        except EOFError:
            raise PoolClosed(f"The pool {name!r} ended while it was asked.") from None
    answer: dict[str, Any] = json.loads(received[0].body)["ok"]
    return answer


class Named:
    """Workers come and go as the pool's process tells. It stays when this program is done with it."""

    def __init__(self, name: str, retries: int) -> None:
        self.name = name
        self._socket = places.connect(name)
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, Log(), retries)
        self.engine.source = self
        self._socket.sendall(frames.pack_json({"do": "connect", "python": list(sys.version_info[:2])}))
        self._socket.setblocking(False)
        self._receiver = Receiver(self._socket)
        self._links: dict[str, SocketLink] = {}
        self._stopping = False  # somebody has told it to end
        self.reactor.watch(self._socket.fileno(), self._read)
        self.reactor.start()

    def expecting(self) -> bool:
        return False

    def starting(self) -> int:
        return 0

    def stop(self) -> None:
        for name in list(self._links):
            self._left(name, Ending())
        self.reactor.unwatch(self._socket.fileno())
        self._socket.close()
        self._receiver.close()
        self.reactor.stop()

    kill = stop

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
            self._links[name] = link
            self.engine.joined(link)
        elif "left" in message:
            self._left(message["left"]["name"], Ending(*message["left"]["ending"]))
        elif "stopping" in message:
            self._stopping = True
        elif "broken" in message or "error" in message:
            told = message.get("broken") or message["error"]
            self.engine.broken(PoolBroken(told["what"], told["next_step"]))

    def _left(self, name: str, ending: Ending) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            self.engine.left(link, ending)

    def _ended(self) -> None:
        """The pool's process is gone, and its workers with it."""
        self.reactor.unwatch(self._socket.fileno())
        how = "was stopped" if self._stopping else "ended unexpectedly"
        see = "" if self._stopping else f"; `gpulease pool log {self.name}` may say why"
        again = f"Start it again: gpulease pool start {self.name}{see}."
        self.engine.broken(PoolClosed(f"The pool {self.name!r} {how}.", again))
        for name in list(self._links):
            self._left(name, Ending(told="ended with its pool"))
