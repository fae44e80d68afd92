"""The workers of a named pool, used from another program of the same user."""

from __future__ import annotations

import os
import socket
import sys
from array import array
from collections import deque
from typing import Any

from gpulease.errors import PoolBroken, PoolClosed
from gpulease.pool import places
from gpulease.pool.engine import Engine
from gpulease.pool.failures import Ending
from gpulease.pool.frames import ANCILLARY, BY_DESCRIPTOR
from gpulease.pool.link import SocketLink
from gpulease.pool.log import Log
from gpulease.pool.reactor import Reactor
from gpulease.wire import Unpacker, pack

ANSWER = 30.0  # seconds


def ask(name: str, verb: str) -> dict[str, Any]:
    """One question to a named pool, one answer."""
    with places.connect(name) as connected:
        connected.settimeout(ANSWER)
        connected.sendall(pack({"do": verb}))
        unpacker = Unpacker()
        while data := connected.recv(1 << 16):
            for message in unpacker.feed(data):
                answer: dict[str, Any] = message["ok"]
                return answer
    raise PoolClosed(f"The pool {name!r} ended while it was asked.")


class Named:
    """Workers come and go as the pool's process tells. It stays when this program is done with it."""

    def __init__(self, name: str, retries: int) -> None:
        self.name = name
        self._socket = places.connect(name)
        self.reactor = Reactor("gpulease-pool")
        self.engine = Engine(self.reactor, Log(), retries)
        self.engine.source = self
        self._socket.sendall(pack({"do": "connect", "python": list(sys.version_info[:2])}))
        self._socket.setblocking(False)
        self._unpacker = Unpacker()
        self._descriptors: deque[int] = deque()
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
        while self._descriptors:
            os.close(self._descriptors.popleft())
        self.reactor.stop()

    kill = stop

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(1 << 16, ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        for level, kind, sent in ancillary:
            if (level, kind) == BY_DESCRIPTOR:
                self._descriptors.extend(array("i", sent[: len(sent) - len(sent) % 4]))
        if not data:
            return self._ended()
        for message in self._unpacker.feed(data):
            self._told(message)

    def _told(self, message: dict[str, Any]) -> None:
        if "joined" in message:
            self._joined(**message["joined"])
        elif "left" in message:
            self._left(message["left"]["name"], Ending(*message["left"]["ending"]))
        elif "stopping" in message:
            self._stopping = True
        elif "broken" in message or "error" in message:
            told = message.get("broken") or message["error"]
            self.engine.broken(PoolBroken(told["what"], told["next_step"]))

    def _joined(self, name: str, gpus: str) -> None:
        connected, tokens = self._descriptors.popleft(), self._descriptors.popleft()
        link = SocketLink(name, gpus, socket.socket(fileno=connected), tokens, self.reactor)
        link.exclusive = False
        self._links[name] = link
        self.engine.joined(link)

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
