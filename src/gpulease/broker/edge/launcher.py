"""The broker's side of the launcher: who somebody is, agents for users, their accounts, and signals."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpulease.broker.orders import LARGEST_EVENT
from gpulease.errors import GpuleaseError
from gpulease.protocol.wire import Unpacker
from gpulease.simulator.activate import directory_from_environment
from gpulease.system import places

MOST = 1 << 16


class InheritedHome:
    """The folders of a broker that its launcher made: what is removed there is put back by restarting both."""

    deserted = True

    def __init__(self, place: places.Place, listener: socket.socket) -> None:
        self.place, self._listener = place, listener
        machine = directory_from_environment(os.environ)
        self.machine = None if machine is None else str(machine)  # a simulated one
        self._socket = os.stat(places.socket_path(place.run)).st_ino

    def listen(self) -> socket.socket:
        self._listener.setblocking(False)
        return self._listener

    put_back = listen

    @property
    def whole(self) -> bool:
        try:
            return os.stat(places.socket_path(self.place.run)).st_ino == self._socket
        except OSError:
            return False

    def leave(self) -> None:
        """The system's place stays the system's while its broker is down."""

    close = leave


class LauncherLink:
    """Whatever asks it for an agent, a proof or a signal has no privileges of its own."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        link.setblocking(False)
        self._unsaid: deque[tuple[bytes, list[socket.socket]]] = deque()
        self._asked: deque[Callable[[str | None], None]] = deque()
        self.descriptor = link.fileno()

    def tell_ready(self) -> None:
        self._say({"do": "ready"})

    def tell_alive(self) -> None:
        """Not while it has not taken what was said before: it is alive itself then, or is not."""
        if not self._unsaid:
            self._say({"do": "alive"})

    def prove(self, connected: socket.socket, answer: Callable[[str | None], None]) -> None:
        """`answer` gets the reason why nothing may run for the process at the other end, or None."""
        self._say({"do": "prove"}, connected)
        self._asked.append(answer)

    def start_agent(self, uid: int, theirs: socket.socket) -> None:
        self._say({"do": "agent", "uid": uid}, theirs)

    def check_account(self, uid: int, theirs: socket.socket) -> None:
        self._say({"do": "account", "uid": uid}, theirs)

    def signal(self, uid: int, pid: int, start: int, number: int) -> None:
        self._say({"do": "signal", "uid": uid, "pid": pid, "start": start, "number": number})

    def ready(self) -> bool:
        """Pass on what it answered; False when it is gone."""
        try:
            data = self._link.recv(MOST)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.flush()
        if data:
            self._asked.popleft()(json.loads(data)["refused"])
        return bool(data)

    def _say(self, message: dict[str, object], *passed: socket.socket) -> None:
        """In order. What the launcher has no room for now is kept: it makes room, since each proof is answered."""
        self._unsaid.append((json.dumps(message).encode(), [one.dup() for one in passed]))
        self.flush()

    def flush(self) -> None:
        """A launcher that is gone is noticed by its silence."""
        while self._unsaid:
            data, passed = self._unsaid[0]
            try:
                socket.send_fds(self._link, [data], [one.fileno() for one in passed])
            except BrokenPipeError:
                pass
            except OSError:
                return
            self._unsaid.popleft()
            for one in passed:
                one.close()


# -------------------------------------------------------------------- accounts


DEADLINE = 10.0  # seconds for an answer
VALID = 60.0  # seconds that an account is taken to be in order, once it was
LONGEST_REASON = 1000  # letters of a reason
Refusal = tuple[str, bool]  # why nothing may be started, and whether that may pass
UNKNOWN: Refusal = ("the broker could not check its account", True)


class AccountCheck(NamedTuple):
    """One that is under way."""

    uid: int
    socket: socket.socket
    since: float
    answer: Callable[[Refusal | None], None]


class AccountChecks:
    """Whether users may still start something: the launcher asks PAM, in a process of its own, and answers in time."""

    def __init__(self, poll: select.epoll, ask: Callable[[int, socket.socket], None]) -> None:
        """`ask` has somebody check a user's account, and tell the other end of a socket pair."""
        self._poll, self._ask = poll, ask
        self._checks: dict[int, AccountCheck] = {}  # by descriptor

    def begin(self, uid: int, answer: Callable[[Refusal | None], None]) -> None:
        """`answer` hears why nothing may be started for that user, or None: once, now or later."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError:
            return answer(UNKNOWN)
        with theirs:
            self._ask(uid, theirs)
        ours.setblocking(False)
        self._poll.register(ours.fileno(), select.EPOLLIN)
        self._checks[ours.fileno()] = AccountCheck(uid, ours, time.monotonic(), answer)
        return None

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._checks

    def ready(self, descriptor: int) -> None:
        """All of the answer comes at once: it is small."""
        try:
            answer = Unpacker(LARGEST_EVENT).feed(self._checks[descriptor].socket.recv(LARGEST_EVENT))[0]
            why = answer["refused"]
            refusal = None if why is None else (str(why)[:LONGEST_REASON], bool(answer["passing"]))
        except (OSError, GpuleaseError, IndexError, KeyError):
            refusal = UNKNOWN
        self._end(descriptor, refusal)

    def sweep(self) -> None:
        for descriptor, check in list(self._checks.items()):
            if time.monotonic() - check.since > DEADLINE:
                self._end(descriptor, UNKNOWN)

    def close(self) -> None:
        for check in self._checks.values():
            check.socket.close()

    def _end(self, descriptor: int, refusal: Refusal | None) -> None:
        check = self._checks.pop(descriptor)
        self._poll.unregister(descriptor)
        check.socket.close()
        check.answer(refusal)


def valid_for(environ: Mapping[str, str]) -> float:
    """Seconds."""
    try:
        return max(0.0, float(environ.get("GPULEASE_ACCOUNT_CHECK", VALID)))
    except ValueError:
        return VALID
