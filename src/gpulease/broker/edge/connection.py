"""The broker's socket: who is let in; and one connection: who is at the other end, what came in, what is unread."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpulease.broker.core.events import Received
from gpulease.errors import in_words
from gpulease.model.peer import Account, Peer
from gpulease.protocol.wire import MAX_VALUES, Message, Unpacker
from gpulease.system import identity, untrusted

READ_ONLY = frozenset(
    """status ls show explain events history usage totals ping why subscribe""".split()  # noqa: SIM905
)
READ_ONLY_BYTES = frozenset(verb.encode() for verb in READ_ONLY)
MAX_LEFT = 32  # messages of a client that has gone which are still done
MAX_UNREAD = 8 << 20  # bytes that a client may leave unread before it is cut off
RUNS = ("add", "edit")  # what may have a new command run
INSTEAD = {"notify": "See `gpulease help notices`: the user who runs the broker has `on-broken`."}
RUNS_AGAIN = ("retry", "resume", "start", "let_go")  # of others' too, where root orders it
HEAD = 64  # bytes of a message that are looked at to guess what it does


class Costs:
    """What one user's connections hold."""

    __slots__ = ("connections", "incoming", "outgoing", "partial", "paused")

    def __init__(self) -> None:
        self.connections = self.incoming = self.outgoing = 0
        self.partial: dict[Connection, None] = {}  # with a message that is not complete
        self.paused: dict[Connection, None] = {}  # of those: which are not read for now


class Connection:
    __slots__ = (
        "descriptor",
        "ended",
        "held",
        "interest",
        "left",
        "missed",
        "outgoing",
        "peer",
        "proven",
        "resumed",
        "since_partial",
        "socket",
        "unpacker",
    )

    def __init__(self, accepted: socket.socket, account: Callable[[int], Account | None]) -> None:
        self.socket = accepted
        self.descriptor = accepted.fileno()
        pid, uid, _ = identity.peer(accepted)
        known = account(uid)
        self.peer = Peer(pid, uid, Account(str(uid)) if known is None else known)
        # What came in stays bytes until it is its turn: as objects it is twenty times as large.
        self.unpacker = Unpacker(values=MAX_VALUES)
        self.resumed: Received[Any] | None = None  # a long request of it that is to be taken up again
        self.outgoing = bytearray()
        self.interest = 0  # what its descriptor is polled for
        self.since_partial: float | None = None
        self.missed = False  # something was not sent, since it had not read what came before
        self.proven = False  # by the launcher, which runs jobs as it
        self.held = known is None  # until something is known of it: who that is, or whether it is proven
        self.ended = False  # the other end has gone; what it had said is still done, if that changes anything
        self.left = MAX_LEFT  # how much of it

    @property
    def ready(self) -> bool:
        """Whether there is something to be done for it."""
        return not self.held and (self.resumed is not None or self.unpacker.whole)

    @property
    def reads_only(self) -> bool:
        """Whether what it says next only looks, as far as can be seen: a wrong guess costs its own user's turn only."""
        if self.resumed is not None:
            return False
        return self.unpacker.peek(HEAD).partition(b'"do":"')[2].partition(b'"')[0] in READ_ONLY_BYTES


def is_read_only(message: Message) -> bool:
    """Whether it changes nothing, so that only its answer matters."""
    verb = message.get("do")
    if not isinstance(verb, str):
        return True  # an error is all that it gets
    return verb in READ_ONLY or (verb == "set" and message.get("value") is None)


def may_run(message: Message, uid: int) -> bool:
    """Whether something may be run for it, so that it is to be proven who that is."""
    verb = message.get("do")
    sends = verb == "notify" and message.get("file") is not None  # by an agent of that user
    return sends or verb in RUNS or (verb in RUNS_AGAIN and uid != 0)


# -------------------------------------------------------------------- the listening socket


COMING = 0.001  # seconds for those who come, before others are served
RESERVE = 64  # descriptors that are kept for what connections ask for: pidfds, files, processes
COMPLAINTS = 60.0  # seconds between two lines in the log about that


class ClientListener:
    def __init__(self, poll: select.epoll, listener: socket.socket, log: Callable[[str], None]) -> None:
        self._poll, self._listener, self._log = poll, listener, log
        self._full = False  # no descriptor is left, so that nobody is let in
        self._complained = float("-inf")
        poll.register(listener.fileno(), select.EPOLLIN)

    def owns(self, descriptor: int) -> bool:
        return descriptor == self._listener.fileno()

    def move(self, listener: socket.socket) -> None:
        """From now on there; who is connected stays so."""
        self._poll.unregister(self._listener.fileno())
        self._listener.close()
        self._listener = listener
        self._poll.register(listener.fileno(), 0 if self._full else select.EPOLLIN)

    def come(self) -> Iterator[socket.socket]:
        """Waiting clients, without the ones that have gone meanwhile: there may be many of them."""
        until = time.monotonic() + COMING
        while not self._full and time.monotonic() < until:
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as trouble:
                return self._shut(in_words(trouble))
            accepted.setblocking(False)
            if _has_gone(accepted):
                untrusted.close(accepted)  # it may have sent an urgent byte, which is not seen so
                continue
            descriptor = accepted.fileno()
            yield accepted
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            kept = min(RESERVE, limit // 4)
            if descriptor >= limit - kept:
                return self._shut(f"{kept} file descriptors are left, which are reserved for open connections")

    def _shut(self, why: str) -> None:
        """New clients wait outside. The descriptors that are left are for clients inside."""
        now = time.monotonic()
        if now - self._complained >= COMPLAINTS:
            self._complained = now
            self._log(f"the broker accepts no new connection for now: {why}")
        self._full = True
        self._poll.modify(self._listener.fileno(), 0)

    def open(self) -> None:
        """A descriptor may be free again."""
        if self._full:
            self._full = False
            self._poll.modify(self._listener.fileno(), select.EPOLLIN)


def _has_gone(accepted: socket.socket) -> bool:
    """Whether its client has closed it and had said nothing."""
    try:
        return not accepted.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
