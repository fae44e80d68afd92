"""The broker's connections: who comes, whose turn it is, what is sent, and what any one of them may cost the others."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable
from itertools import islice

from gpulease.broker.connection import MOST_UNREAD, Connection
from gpulease.broker.events import Drained, Event, Left, Received
from gpulease.broker.peer import Peer
from gpulease.errors import ProtocolError, TooMuch
from gpulease.messages import Message, error
from gpulease.wire import pack

MOST_CONNECTIONS = 1024  # of one user
MOST_PARTIAL = 64 << 20  # bytes of half-sent messages of one user
PARTIAL = 10.0  # seconds for a message that has begun to be complete
READ = 1 << 16
TURN = 4  # messages of one connection before it is the others' turn
TURNS = 32  # of connections with more, before whoever has just come is looked at
LOOKS = 16  # requests that only look, in one turn of the core: whoever wants to act comes first
LOOKING = frozenset({"status", "ls", "show", "explain", "events", "ping", "why", "subscribe"})


class Clients:
    def __init__(
        self,
        poll: select.epoll,
        listener: socket.socket,
        happened: Callable[[Event], None],
        log: Callable[[str], None],
    ) -> None:
        self._poll, self._listener, self._happened, self._log = poll, listener, happened, log
        self._connections: dict[int, Connection] = {}
        self._by_peer: dict[Peer, Connection] = {}
        self._users: dict[int, int] = {}
        self._partial: set[Connection] = set()
        self.backlogged: dict[Connection, None] = {}
        self._looks = 0
        self._packed: tuple[Message, bytes] = ({}, b"")  # the last message: many may get the same
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self.heard = False  # whether anybody said anything since this was last set to False
        poll.register(listener.fileno(), select.EPOLLIN)

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._connections or descriptor == self._listener.fileno()

    def ready(self, descriptor: int, flags: int) -> None:
        self.heard = True
        if descriptor in self._connections:
            self._client(self._connections[descriptor], flags)
        else:
            self._accept()

    def take_turns(self) -> None:
        self._looks = 0
        for connection in list(islice(self.backlogged, TURNS)):
            self._turn(connection)

    def cut_partial(self, now: float) -> None:
        for connection in [one for one in self._partial if (one.since_partial or now) + PARTIAL <= now]:
            self._cut(connection)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._flush(connection)
            connection.socket.close()

    # ---------------------------------------------------------------- coming

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return None
            except OSError as trouble:
                return self._no_room(trouble)
            accepted.setblocking(False)
            connection = Connection(accepted)
            uid = connection.peer.uid
            if self._users.get(uid, 0) >= MOST_CONNECTIONS:
                self._turn_away(connection)
                continue
            self._users[uid] = self._users.get(uid, 0) + 1
            self._connections[connection.descriptor] = connection
            self._by_peer[connection.peer] = connection
            self._poll.register(connection.descriptor, select.EPOLLIN)

    def _no_room(self, trouble: OSError) -> None:
        """No descriptor is left: the one kept for this takes the next client in, to send it away."""
        self._log(f"cannot accept: {trouble}")
        if self._spare is not None:
            os.close(self._spare)
            self._spare = None
        with contextlib.suppress(OSError):
            self._listener.accept()[0].close()
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    @staticmethod
    def _turn_away(connection: Connection) -> None:
        trouble = TooMuch(f"You have {MOST_CONNECTIONS} connections to the broker, and more are not taken.")
        try:
            connection.socket.send(pack(error(trouble)))
        except OSError:
            pass
        connection.socket.close()

    # ---------------------------------------------------------------- saying

    def _client(self, connection: Connection, flags: int) -> None:
        if flags & select.EPOLLOUT:
            self._flush(connection)
        if not flags & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return None
        try:
            data = connection.socket.recv(READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        return self._received(connection, data) if data else self._cut(connection)

    def _received(self, connection: Connection, data: bytes) -> None:
        try:
            messages = connection.unpacker.feed(data)
        except ProtocolError as trouble:
            self.send(connection.peer, error(trouble))
            return self._cut(connection)
        connection.backlog = messages[::-1] + connection.backlog
        self._turn(connection)
        if connection.unpacker.pending:
            connection.since_partial = connection.since_partial or time.monotonic()
            self._partial.add(connection)
            uid = connection.peer.uid
            if sum(one.unpacker.size for one in self._partial if one.peer.uid == uid) > MOST_PARTIAL:
                self._cut(connection)
        else:
            connection.since_partial = None
            self._partial.discard(connection)
        return None

    def _turn(self, connection: Connection) -> None:
        """A few of its messages. While more are left it is not read: who floods the broker waits for itself."""
        for _ in range(min(TURN, len(connection.backlog))):
            if _only_looks(connection.backlog[-1]):
                if self._looks >= LOOKS:
                    break
                self._looks += 1
            self._happened(Received(connection.peer, connection.backlog.pop()))
        waited = self.backlogged.pop(connection, self) is None
        if connection.backlog:
            self.backlogged[connection] = None  # behind the others
        if waited is not bool(connection.backlog):
            self._set_interest(connection)

    def _set_interest(self, connection: Connection) -> None:
        if self._connections.get(connection.descriptor) is connection:
            reading = 0 if connection.backlog else select.EPOLLIN
            self._poll.modify(connection.descriptor, reading | (select.EPOLLOUT if connection.outgoing else 0))

    # ---------------------------------------------------------------- leaving

    def _cut(self, connection: Connection) -> None:
        if self._connections.pop(connection.descriptor, None) is None:
            return
        uid = connection.peer.uid
        del self._by_peer[connection.peer]
        self._partial.discard(connection)
        connection.backlog.clear()
        self.backlogged.pop(connection, None)
        self._users[uid] -= 1
        if not self._users[uid]:
            del self._users[uid]
        self._poll.unregister(connection.descriptor)
        connection.socket.close()
        self._happened(Left(connection.peer))

    # ---------------------------------------------------------------- hearing

    def send(self, peer: Peer, message: Message, droppable: bool = False) -> None:
        connection = self._by_peer.get(peer)
        if connection is None:
            return
        if droppable and connection.outgoing:
            connection.missed = True
            return
        data = self._pack(message)
        if not connection.outgoing:
            try:
                data = data[connection.socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                return  # its end is read like any other
        if data:
            connection.outgoing += data
            self._set_interest(connection)
            if len(connection.outgoing) > MOST_UNREAD:
                with contextlib.suppress(OSError):
                    connection.socket.shutdown(socket.SHUT_RDWR)

    def _pack(self, message: Message) -> bytes:
        if message is not self._packed[0]:
            try:
                self._packed = (message, pack(message, MOST_UNREAD))
            except ProtocolError as trouble:
                return pack(error(trouble))
        return self._packed[1]

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.outgoing:
                sent = connection.socket.send(connection.outgoing)
                del connection.outgoing[:sent]
        except BlockingIOError:
            return
        except OSError:
            connection.outgoing.clear()
        self._set_interest(connection)
        if connection.missed:
            connection.missed = False
            self._happened(Drained(connection.peer))


def _only_looks(message: Message) -> bool:
    verb = message.get("do")
    return isinstance(verb, str) and verb in LOOKING
