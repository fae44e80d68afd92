"""One connection to the broker's socket: who is at the other end, what came in, and what has not been read there."""

from __future__ import annotations

import socket

from gpulease import identity
from gpulease.broker.peer import Peer
from gpulease.wire import Message, Unpacker

MOST_UNREAD = 8 << 20  # bytes that a client may leave unread before it is cut off


class Connection:
    __slots__ = ("backlog", "descriptor", "missed", "outgoing", "peer", "since_partial", "socket", "unpacker")

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.descriptor = accepted.fileno()
        pid, uid, _ = identity.peer(accepted)
        self.peer = Peer(pid, uid, identity.user_name(uid))
        self.unpacker = Unpacker()
        self.outgoing = bytearray()
        self.backlog: list[Message] = []  # received, and to be handled when it is its turn again, the next one last
        self.since_partial: float | None = None
        self.missed = False  # something was not sent, since it had not read what came before
