"""One client at the other end of the socket: who it is, by the kernel, and what it sent so far."""

from __future__ import annotations

import socket

from gpulease import identity
from gpulease.wire import Message, Unpacker

MOST_UNREAD = 8 << 20  # bytes that a client may leave unread before it is cut off


class Connection:
    __slots__ = (
        "_groups",
        "backlog",
        "bytes",
        "descriptor",
        "each",
        "outgoing",
        "parts",
        "pid",
        "since_partial",
        "socket",
        "start_time",
        "uid",
        "unpacker",
    )

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.descriptor = accepted.fileno()
        self.pid, self.uid, _ = identity.peer(accepted)
        self.start_time = identity.start_time(self.pid)
        self.unpacker = Unpacker()
        self.outgoing = bytearray()
        self.backlog: list[Message] = []  # received, and to be handled when it is its turn again, the next one last
        self.since_partial: float | None = None
        self.parts: list[list[str]] = []  # of a batch of jobs that is still coming in
        self.each: list[dict[str, str]] = []  # what each of them has of its own, if anything
        self.bytes = 0
        self._groups: tuple[str, ...] | None = None

    @property
    def user(self) -> str:
        return identity.user_name(self.uid)

    @property
    def groups(self) -> tuple[str, ...]:
        if self._groups is None:
            self._groups = identity.group_names(self.uid)
        return self._groups
