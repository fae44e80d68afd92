"""The broker's connections: who comes, what is read and sent, and what any one user may cost the others."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from gpulease.broker.core.events import Behind, CaughtUp, ClientGone, Event, Received
from gpulease.broker.edge.accounts import Accounts, Question
from gpulease.broker.edge.connection import (
    INSTEAD,
    MAX_UNREAD,
    ClientListener,
    Connection,
    Costs,
    is_read_only,
    may_run,
)
from gpulease.broker.edge.exception_log import ExceptionLog
from gpulease.broker.edge.rounds import Turns
from gpulease.errors import BrokerUnavailable, NotPermitted, ProtocolError, TooMuch
from gpulease.model.peer import Peer
from gpulease.protocol.messages import Message, error
from gpulease.protocol.wire import pack
from gpulease.system import untrusted

MAX_CONNECTIONS = 1024  # of one user
MAX_INCOMING = 64 << 20  # bytes of one user's messages that were not handled yet
MAX_OUTGOING = 64 << 20  # bytes of answers that one user's clients did not read yet
PARTIAL = 10.0  # seconds for a message that has begun to be complete
MUCH_INCOMING = 4 << 20  # from here on, one user's messages are read only as they are handled
MANY_PARTIAL = 16  # messages of one user that come in pieces at a time: each piece costs a read, be it one byte
RESUMED = 4  # connections of one user that are read again at a time
READ = 1 << 15
AGAIN = "Try again in a moment."


class Clients:
    def __init__(
        self,
        poll: select.epoll,
        listener: socket.socket,
        happened: Callable[[Event], None],
        log: Callable[[str], None],
        accounts: Accounts,
    ) -> None:
        self._poll, self._happened, self._accounts = poll, happened, accounts
        self._door = ClientListener(poll, listener, log)
        self._exceptions = ExceptionLog(log)
        self._connections: dict[int, Connection] = {}
        self._by_peer: dict[Peer, Connection] = {}
        self._users: dict[int, Costs] = {}
        self._turns = Turns()
        self._packed: tuple[Message, bytes] = ({}, b"")  # the last message: many may get the same
        self._taken: list[Connection] = []  # whose messages are being handled
        self._introduced: set[int] = set()
        self.prove: Callable[[socket.socket, Callable[[str | None], None]], None] | None = None  # before jobs are taken
        self.heard = False  # whether anybody said anything since this was last set to False
        self.listen_at, self.accept_waiting = self._door.move, self._door.open

    @property
    def waiting(self) -> bool:
        """Whether there are messages to be handled now."""
        due = self.due
        return due is not None and due <= time.monotonic()

    @property
    def due(self) -> float | None:
        """When there are messages to be handled."""
        return self._turns.due

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._connections or self._door.owns(descriptor)

    def ready(self, descriptor: int, flags: int) -> None:
        self.heard = True
        connection = self._connections.get(descriptor)
        if connection is not None:
            self._apart(connection, lambda: self._client(connection, flags))
        else:
            self._accept()

    def _apart(self, connection: Connection, action: Callable[[], None]) -> None:
        """A mistake of ours over one connection costs that connection."""
        try:
            action()
        except Exception:
            self._exceptions.log_exception()
            self._cut(connection)

    def cut_partial(self, now: float) -> None:
        partial = [one for costs in self._users.values() for one in costs.partial if one not in costs.paused]
        for connection in [one for one in partial if (one.since_partial or now) + PARTIAL <= now]:
            self._cut(connection)

    def close(self) -> None:
        for connection in list(self._connections.values()):
            self._flush(connection)
            untrusted.close(connection.socket)

    # ---------------------------------------------------------------- coming

    def _accept(self) -> None:
        for accepted in self._door.come():
            try:
                connection = Connection(accepted, self._accounts.account)
            except OSError:  # it has gone already
                untrusted.close(accepted)
                continue
            costs = self._users.setdefault(connection.peer.uid, Costs())
            if costs.connections >= MAX_CONNECTIONS:
                self._turn_away(connection)
                continue
            costs.connections += 1
            self._connections[connection.descriptor] = connection
            self._by_peer[connection.peer] = connection
            connection.interest = 0 if connection.held else select.EPOLLIN
            self._poll.register(connection.descriptor, connection.interest)
            self._introduce(connection)
            if connection.held:
                self._accounts.when_known(("uid", connection.peer.uid), partial(self._admit, connection))

    def _admit(self, connection: Connection) -> None:
        """The directory of users has answered. Only this connection waited for it."""
        account = self._accounts.account(connection.peer.uid)
        if account is None:
            self.send(connection.peer, error(BrokerUnavailable("The directory of users does not answer.", AGAIN)))
            return self._cut(connection)
        connection.peer.account = account
        return self._handle_again(connection, None)

    def _handle_again(self, connection: Connection, event: Received[Any] | None) -> None:
        """What it waited for is known."""
        connection.held = False
        if self._by_peer.get(connection.peer) is connection:
            connection.resumed = event
            self._apart(connection, lambda: self._await_next_turn(connection))

    def look_up_account(self, event: Received[Any], question: Question) -> None:
        """The message is handled again when there is an answer, or none in time."""
        connection = self._by_peer.get(event.peer)
        if connection is not None:
            connection.held = True
            self._accounts.when_known(question, partial(self._handle_again, connection, event))
        elif not is_read_only(event.message):
            self._accounts.when_known(question, partial(self._happened, event))

    def _introduce(self, connection: Connection) -> None:
        """Name a user who comes for the first time to the launcher: jobs from before it was there may be theirs."""
        if self.prove is not None and connection.peer.uid not in self._introduced:
            self._introduced.add(connection.peer.uid)
            with contextlib.suppress(OSError):
                self.prove(connection.socket, lambda refused: None)

    @staticmethod
    def _turn_away(connection: Connection) -> None:
        trouble = TooMuch(f"You have {MAX_CONNECTIONS} connections to the broker, and more are not taken.")
        with contextlib.suppress(OSError):
            connection.socket.send(pack(error(trouble)))
        untrusted.close(connection.socket)

    # ---------------------------------------------------------------- saying

    def _client(self, connection: Connection, flags: int) -> None:
        if flags & select.EPOLLOUT:
            self._flush(connection)
        if connection.interest & select.EPOLLIN == 0:  # it has something to be done first
            return self._ended(connection) if flags & (select.EPOLLHUP | select.EPOLLERR) else None
        if not flags & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return None
        return self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = untrusted.receive(connection.socket, READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        return self._received(connection, data) if data else self._cut(connection)

    def _received(self, connection: Connection, data: bytes) -> None:
        connection.unpacker.keep(data)
        costs = self._users[connection.peer.uid]
        costs.incoming += len(data)
        if costs.incoming > MAX_INCOMING:
            trouble = TooMuch(f"You have {MAX_INCOMING >> 20} MiB of requests under way, and more are not taken.")
            self.send(connection.peer, error(trouble))
            return self._cut(connection)
        return self._await_turn(connection)

    def _await_turn(self, connection: Connection) -> None:
        """While something is to be done for it, it is not read: who floods the broker waits for itself."""
        ready = connection.ready
        if ready:
            self._turns.add(connection)
        elif connection.ended and not connection.held:
            return self._read(connection)
        costs = self._users[connection.peer.uid]
        costs.partial.pop(connection, None)
        if ready or not connection.unpacker.pending:
            connection.since_partial = None
        else:
            read = len(costs.partial) - len(costs.paused)
            busy = self._turns.has(connection.peer.uid) or read >= RESUMED
            costs.partial[connection] = None
            connection.since_partial = connection.since_partial or time.monotonic()
            if read >= MANY_PARTIAL or (busy and costs.incoming > MUCH_INCOMING):
                costs.paused[connection] = None
        return self._set_interest(connection)

    def round(self) -> Iterator[Received[Any]]:
        """Messages for one turn of the core, from whoever has used least."""
        return self._turns.round(self._take, self._crowded)

    @property
    def _crowded(self) -> bool:
        """Whether one user's long requests may hold others up."""
        return len(self._users) > 1

    def _take(self, connection: Connection) -> Received[Any] | None:
        try:
            return self._next(connection)
        except Exception:
            self._exceptions.log_exception()
            self._cut(connection)
            return None

    def _next(self, connection: Connection) -> Received[Any] | None:
        """The next thing that it says."""
        event, connection.resumed = connection.resumed, None
        if event is None:
            try:
                message = connection.unpacker.read()
            except ProtocolError as trouble:
                self.send(connection.peer, error(trouble))
                self._cut(connection)
                return None
            if connection.ended and not self._is_left(connection, message):
                return None
            if self.prove is not None and not connection.proven and may_run(message, connection.peer.uid):
                self._hold_for_proof(connection, INSTEAD.get(message["do"], "Use `gpulease run` there."))
                return None
            event = Received(connection.peer, message, self._skip(connection))
        self._taken.append(connection)
        return event._replace(crowded=self._crowded)

    def _is_left(self, connection: Connection, message: Message) -> bool:
        """Whether to do it without a client: it changes something, and is not part of a flood that was left behind."""
        if not connection.left:
            self._cut(connection)
            return False
        connection.left -= 1
        if not is_read_only(message):
            return True
        self._skip(connection)
        self._await_turn(connection)
        return False

    def _skip(self, connection: Connection) -> int:
        """Its next message was taken; how many bytes that had."""
        size = connection.unpacker.skip()
        self._users[connection.peer.uid].incoming -= size
        self._resume(connection.peer.uid)
        return size

    def _hold_for_proof(self, connection: Connection, instead: str) -> None:
        """The launcher is asked who it is; until it has answered nothing of this client is handled.

        `instead`: what it may do where that is refused.

        What it said stays bytes meanwhile, and is read again: as objects it is twenty times as large.
        """
        assert self.prove is not None
        connection.held = True

        def answer(refused: str | None) -> None:
            connection.held = False
            if self._by_peer.get(connection.peer) is connection:
                self._apart(connection, lambda: proceed(refused))

        def proceed(refused: str | None) -> None:
            connection.proven = refused is None
            if refused is not None:
                self._skip(connection)
                self.send(connection.peer, error(NotPermitted(refused, instead)))
            self._await_turn(connection)

        self.prove(connection.socket, answer)

    def end_round(self) -> None:
        """What was taken has been handled. Until then its clients have no other turn: it may be to be gone on with."""
        taken, self._taken = self._taken, []
        for connection in taken:
            if self._by_peer.get(connection.peer) is connection:
                self._apart(connection, partial(self._await_next_turn, connection))

    def _await_next_turn(self, connection: Connection) -> None:
        self._turns.drop(connection)
        self._await_turn(connection)

    def continue_later(self, event: Received[Any]) -> None:
        """A long request: before anything else that its client says, since answers come in the order of questions."""
        connection = self._by_peer.get(event.peer)
        unread = (connection is None or connection.ended) and is_read_only(event.message)
        if connection is None:  # what was begun is done, also for a client that has gone
            return None if unread else self._happened(event._replace(crowded=self._crowded))
        return self._handle_again(connection, None if unread else event)

    def _resume(self, uid: int) -> None:
        """Read some of its user's connections again."""
        paused = self._users[uid].paused
        for connection in list(islice(paused, RESUMED)):
            del paused[connection]
            connection.since_partial = time.monotonic()
            self._set_interest(connection)

    def _set_interest(self, connection: Connection) -> None:
        paused = connection in self._users[connection.peer.uid].paused
        interest = (0 if connection.ready or connection.held or paused else select.EPOLLIN) | (
            select.EPOLLOUT if connection.outgoing else 0
        )
        if connection.interest != interest and not connection.ended:
            connection.interest = interest
            self._poll.modify(connection.descriptor, interest)

    # ---------------------------------------------------------------- leaving

    def _ended(self, connection: Connection) -> None:
        """It has gone. What it had asked for is still done, and then it is cut off."""
        connection.ended = True
        self._poll.unregister(connection.descriptor)
        if not connection.ready and not connection.held:
            self._read(connection)

    def _cut(self, connection: Connection) -> None:
        if self._connections.pop(connection.descriptor, None) is None:
            return
        uid = connection.peer.uid
        del self._by_peer[connection.peer]
        self._turns.drop(connection)
        costs = self._users[uid]
        costs.connections -= 1
        costs.partial.pop(connection, None)
        costs.paused.pop(connection, None)
        self._resume(uid)
        costs.incoming -= connection.unpacker.size
        costs.outgoing -= len(connection.outgoing)
        if not costs.connections:
            del self._users[uid]
        if not connection.ended:
            with contextlib.suppress(OSError):
                self._poll.unregister(connection.descriptor)
        untrusted.close(connection.socket)
        self._happened(ClientGone(connection.peer))
        self.accept_waiting()

    # ---------------------------------------------------------------- hearing

    def send(self, peer: Peer, message: Message, droppable: bool = False, more: bool = False) -> None:
        connection = self._by_peer.get(peer)
        if connection is not None and not connection.ended:
            self._apart(connection, lambda: self._send(connection, message, droppable, more))

    def _send(self, connection: Connection, message: Message, droppable: bool, more: bool) -> None:
        if droppable and connection.outgoing:
            if not connection.missed:
                connection.missed = True
                self._happened(Behind(connection.peer))
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
            self._keep_unread(connection, data)
            connection.missed = connection.missed or more
        elif more:
            self._happened(CaughtUp(connection.peer))

    def _keep_unread(self, connection: Connection, data: bytes) -> None:
        costs = self._users[connection.peer.uid]
        if len(connection.outgoing) + len(data) > MAX_UNREAD or costs.outgoing + len(data) > MAX_OUTGOING:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)
            return
        connection.outgoing += data
        costs.outgoing += len(data)
        self._set_interest(connection)

    def _pack(self, message: Message) -> bytes:
        if message is not self._packed[0]:
            try:
                self._packed = (message, pack(message, MAX_UNREAD))
            except ProtocolError as trouble:
                return pack(error(trouble))
        return self._packed[1]

    def _flush(self, connection: Connection) -> None:
        before = len(connection.outgoing)
        try:
            while connection.outgoing:
                sent = connection.socket.send(connection.outgoing)
                del connection.outgoing[:sent]
        except BlockingIOError:
            return
        except OSError:
            connection.outgoing.clear()
        finally:
            self._users[connection.peer.uid].outgoing -= before - len(connection.outgoing)
        self._set_interest(connection)
        if connection.missed:
            connection.missed = False
            self._happened(CaughtUp(connection.peer))
