"""The broker's listening socket: who comes is let in, a few at a time, while there are descriptors for it."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Callable, Iterator

from gpulease.errors import in_words
from gpulease.system import untrusted

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
        """Those who wait before it, but for those who have gone meanwhile: there may be a stream of them."""
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
                return self._shut(f"{kept} file descriptors are left, which are kept for what is under way")

    def _shut(self, why: str) -> None:
        """Who comes now waits before the door; what those inside need descriptors for goes on."""
        now = time.monotonic()
        if now - self._complained >= COMPLAINTS:
            self._complained = now
            self._log(f"no connection is taken for now: {why}")
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
