"""The broker's edge: sockets, pidfds, the sampler and the clock, all on one epoll. Nothing here decides.

Written on epoll and not on asyncio: a hand-off is a handful of system calls, and the loop around them costs as much
again in asyncio as the rest together (docs/decisions/0005).
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback  # now: when it is needed there may be no descriptor left to load it
from itertools import islice

from gpulease import __version__, identity, places
from gpulease.broker.connection import MOST_UNREAD, Connection
from gpulease.broker.core import Core
from gpulease.broker.neighbours import SafeGpuLock
from gpulease.broker.reaper import Reaper
from gpulease.broker.sampler import to_processes, to_sample
from gpulease.broker.sampling import Sampling
from gpulease.broker.verbs import handle
from gpulease.errors import GpuleaseError, ProtocolError, StateError, TooMuch
from gpulease.messages import Message, error
from gpulease.stores.base import Document, Store
from gpulease.wire import pack

MOST_CONNECTIONS = 1024  # of one user
MOST_PARTIAL = 64 << 20  # bytes of half-sent messages of one user
PARTIAL = 10.0  # seconds for a message that has begun to be complete
HOUSEKEEPING = 5.0  # seconds between looks at what nobody watches any more and at the socket's own file
READ = 1 << 16
TURN = 4  # messages of one connection before it is the others' turn
TURNS = 32  # of connections with more, before whoever has just come is looked at


class Server:
    def __init__(self, listener: socket.socket, store: Store, kind: str, directory: str, deadline: float) -> None:
        self._poll = select.epoll()
        self._listener = listener
        self._kind, self._directory = kind, directory
        self._connections: dict[int, Connection] = {}
        self._users: dict[int, int] = {}
        self._partial: set[Connection] = set()
        self._backlogged: dict[Connection, None] = {}
        self._reaper = Reaper(self._poll)
        self._sampling = Sampling(self._poll, deadline)
        self._running = True
        self._spare: int | None = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._wakers: tuple[socket.socket, ...] = ()
        self._begin = self._home_seen = time.monotonic()
        self._home = _inode(places.socket_path(directory))
        self._poll.register(listener.fileno(), select.EPOLLIN)
        _raise_file_limit()
        self.core = Core(store, self, identity.boot_id(), os.uname().nodename, SafeGpuLock(), directory)

    # ---------------------------------------------------------------- the loop

    def run(self, idle: float | None) -> None:
        """Serve until stopped, or until there was nothing to hold, run or wait for during `idle` seconds."""
        last_busy = time.monotonic()
        while self._running:
            busy = bool(self.core.leases or self.core.line)
            now = time.monotonic()
            last_busy = now if busy else last_busy
            if (idle is not None and now - last_busy >= idle) or self._keep_house(now):
                break
            for descriptor, events in self._poll.poll(self._timeout(None if idle is None else last_busy + idle)):
                self._dispatch(descriptor, events)
                if descriptor in self._connections:
                    last_busy = time.monotonic()
            for connection in list(islice(self._backlogged, TURNS)):
                self._turn(connection)
            self._by_the_clock()
        self._close()

    def _timeout(self, idle_at: float | None) -> float:
        if self._backlogged:
            return 0.0
        now = time.monotonic()
        moments = [] if idle_at is None else [idle_at - now]
        alarm = self.core.next_alarm()
        if alarm is not None:
            moments.append(alarm - self.core.now())
        if self._sampling.due is not None:
            moments.append(self._sampling.due - now)
        moments.append(HOUSEKEEPING)
        return max(0.0, min(moments)) + 0.0005

    def _keep_house(self, now: float) -> bool:
        """Whether the socket is gone, or another's: nobody can come any more, and the next broker needs the lock."""
        if now - self._home_seen < HOUSEKEEPING:
            return False
        self._home_seen = now
        self._reaper.sweep()
        return _inode(places.socket_path(self._directory)) != self._home

    def _dispatch(self, descriptor: int, events: int) -> None:
        try:
            if descriptor in self._connections:
                self._client(self._connections[descriptor], events)
            elif descriptor == self._listener.fileno():
                self._accept()
            elif descriptor == self._sampling.descriptor:
                self._answers()
            elif self._reaper.owns(descriptor):
                self._ended(descriptor)
        except StateError as trouble:
            self.log(f"not written, to be tried again: {trouble.what}")
        except Exception:
            self._complain()

    def _by_the_clock(self) -> None:
        now = time.monotonic()
        if self._sampling.due is not None and self._sampling.due <= now:
            self.core.failed(self._sampling.overdue(now))
        for connection in [one for one in self._partial if (one.since_partial or now) + PARTIAL <= now]:
            self._cut(connection)
        try:
            self.core.tick()
        except StateError as trouble:
            self.log(f"not written, to be tried again: {trouble.what}")
        except Exception:
            self._complain()

    def _ended(self, descriptor: int) -> None:
        key = self._reaper.ended(descriptor)
        try:
            self.core.holding.process_ended(key)
        except StateError:
            # Its lease is still on disk. The dead are found again by the next look at them.
            self.core.holding.remember_dead(key)
            raise

    def _answers(self) -> None:
        for answer in self._sampling.read(time.monotonic()):
            if isinstance(answer, GpuleaseError):
                self.core.failed(answer)
            elif "checked" in answer:
                self.core.granting.checked(
                    {uuid: (used, to_processes(rows), lost) for uuid, used, rows, lost in answer["checked"]}
                )
            else:
                self.core.sampled(to_sample(answer))

    # ---------------------------------------------------------------- clients

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
            if self._users.get(connection.uid, 0) >= MOST_CONNECTIONS:
                self._turn_away(connection)
                continue
            self._users[connection.uid] = self._users.get(connection.uid, 0) + 1
            self._connections[connection.descriptor] = connection
            self._poll.register(connection.descriptor, select.EPOLLIN)

    def _no_room(self, trouble: OSError) -> None:
        """No descriptor is left: the one kept for this takes the next client in, to send it away."""
        self.log(f"cannot accept: {trouble}")
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

    def _client(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(connection)
        if not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return None
        try:
            data = connection.socket.recv(READ)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            return self._cut(connection)
        self._received(connection, data)

    def _received(self, connection: Connection, data: bytes) -> None:
        try:
            messages = connection.unpacker.feed(data)
        except ProtocolError as trouble:
            self.send(connection, error(trouble))
            return self._cut(connection)
        connection.backlog = messages[::-1] + connection.backlog
        self._turn(connection)
        if connection.unpacker.pending:
            connection.since_partial = connection.since_partial or time.monotonic()
            self._partial.add(connection)
            if sum(one.unpacker.size for one in self._partial if one.uid == connection.uid) > MOST_PARTIAL:
                self._cut(connection)
        else:
            connection.since_partial = None
            self._partial.discard(connection)
        return None

    def _turn(self, connection: Connection) -> None:
        """A few of its messages. While more are left it is not read: who floods the broker waits for itself."""
        try:
            for _ in range(min(TURN, len(connection.backlog))):
                self._request(connection, connection.backlog.pop())
        except StateError as trouble:
            self.log(f"not written, to be tried again: {trouble.what}")
        waited = self._backlogged.pop(connection, self) is None
        if connection.backlog:
            self._backlogged[connection] = None  # behind the others
        if waited is not bool(connection.backlog):
            self._set_interest(connection)

    def _set_interest(self, connection: Connection) -> None:
        if self._connections.get(connection.descriptor) is connection:
            reading = 0 if connection.backlog else select.EPOLLIN
            self._poll.modify(connection.descriptor, reading | (select.EPOLLOUT if connection.outgoing else 0))

    def _request(self, connection: Connection, message: Message) -> None:
        try:
            self.core.guarded(connection, lambda: handle(self.core, connection, message))
            self.core.granting.replan()
        except StateError:
            raise
        except Exception as trouble:
            self._complain()
            self.send(connection, error(GpuleaseError(f"The broker failed: {type(trouble).__name__}.")))

    def _complain(self) -> None:
        """A mistake of ours must cost one request, not everybody's broker."""
        self.log(traceback.format_exc())

    def _cut(self, connection: Connection) -> None:
        if self._connections.pop(connection.descriptor, None) is None:
            return
        self._partial.discard(connection)
        connection.backlog.clear()
        self._backlogged.pop(connection, None)
        self._users[connection.uid] -= 1
        if not self._users[connection.uid]:
            del self._users[connection.uid]
        self._poll.unregister(connection.descriptor)
        connection.socket.close()
        self.core.disconnected(connection)

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

    # ---------------------------------------------------------------- what the core asks for

    def send(self, connection: Connection, message: Document) -> None:
        if self._connections.get(connection.descriptor) is not connection:
            return
        try:
            data = pack(message, MOST_UNREAD)
        except ProtocolError as trouble:
            data = pack(error(trouble))
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

    def watch(self, pid: int, start_time: int | None) -> bool:
        return self._reaper.watch(pid, start_time)

    def forget(self, key: tuple[int, int | None]) -> None:
        self._reaper.forget(key)

    def ask(self, question: str) -> bool:
        now = time.monotonic()
        if not self._sampling.may_ask(now):
            return False
        self._sampling.ask(question, now)
        return True

    @staticmethod
    def identify(pid: int) -> tuple[int | None, int | None]:
        return identity.start_time(pid), identity.user_of(pid)

    def manages(self, uid: int) -> bool:
        return uid in (0, os.geteuid())

    def about(self) -> Document:
        return {
            "pid": os.getpid(),
            "kind": self._kind,
            "user": identity.user_name(os.geteuid()),
            "directory": self._directory,
            "version": __version__,
            "uptime": time.monotonic() - self._begin,
        }

    def stop(self) -> None:
        self._running = False

    def wake_on(self, *ends: socket.socket) -> None:
        """End a wait when the first of these becomes readable; keep them open."""
        self._wakers = ends
        self._poll.register(ends[0].fileno(), select.EPOLLIN)

    @staticmethod
    def log(text: str) -> None:
        with contextlib.suppress(OSError):  # a full disk
            print(time.strftime("%Y-%m-%d %H:%M:%S"), text, file=sys.stderr, flush=True)

    def _close(self) -> None:
        for connection in list(self._connections.values()):
            self._flush(connection)
            connection.socket.close()
        self._sampling.close()
        with contextlib.suppress(StateError):
            self.core.holding.save_usage()
        self.core.queue.endings.close()
        self.core.store.close()
        if not self.core.leases and not self.core.line:
            with contextlib.suppress(OSError):  # a place without a socket holds nothing: others may grant
                os.unlink(os.path.join(self._directory, "socket"))


def _inode(path: str) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    except (OSError, ValueError):
        pass


def end_on_signals(server: Server) -> None:
    """SIGTERM and SIGINT end the broker as `gpulease stop` does; a pipe wakes the loop."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    server.wake_on(ours, theirs)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: server.stop())
