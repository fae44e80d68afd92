"""Whether users may still start something: the launcher asks PAM, in a process of its own, and answers in time."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gpulease.broker.orders import LARGEST_EVENT
from gpulease.errors import GpuleaseError
from gpulease.protocol.wire import Unpacker

DEADLINE = 10.0  # seconds for an answer
VALID = 60.0  # seconds that an account is taken to be in order, once it was
LONGEST = 1000  # letters of a reason
Refusal = tuple[str, bool]  # why nothing may be started, and whether that may pass
UNKNOWN: Refusal = ("whether its account is in order could not be found out", True)


class AccountCheck(NamedTuple):
    """One that is under way."""

    uid: int
    socket: socket.socket
    since: float
    answer: Callable[[Refusal | None], None]


class AccountChecks:
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
            refusal = None if why is None else (str(why)[:LONGEST], bool(answer["passing"]))
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
