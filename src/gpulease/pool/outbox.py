"""A worker's results on their way out: short ones a few at a time, and none kept for long.

One send for each result costs the pool a wake-up each. So the results of short calls wait for each other while more
calls are at hand; a thread sends what has waited, should the next call turn out to be a long one.
"""

from __future__ import annotations

import socket
import threading
import time

from gpulease.pool import frames

SHORT = 0.0005  # seconds that a call takes at most for its result to wait
MOST = 32  # results that wait for each other: a quarter of what a worker has ahead
LONGEST = 0.002  # seconds that one waits


class Outbox:
    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._waiting: list[bytes] = []
        self._lock = threading.Lock()
        self._watcher: Watcher | None = None

    def send(self, data: bytes, seconds: float, more: bool, descriptor: int | None = None) -> None:
        """`more`: whether other calls are at hand."""
        with self._lock:
            self._waiting.append(data)
            if not more or seconds > SHORT or descriptor is not None or len(self._waiting) >= MOST:
                return self._flush(descriptor)
        if self._watcher is None:
            self._watcher = Watcher(self)
        self._watcher.look_later()

    def flush(self) -> None:
        with self._lock:
            if self._waiting:
                self._flush(None)

    def _flush(self, descriptor: int | None) -> None:
        *before, last = self._waiting
        self._waiting = []
        try:
            if descriptor is None:
                self._socket.sendall(b"".join((*before, last)))
                return
            if before:  # a descriptor travels with the first byte of its own frame
                self._socket.sendall(b"".join(before))
            frames.send_all(self._socket, last, [descriptor])
        except OSError:
            pass  # nobody waits for it any more; the next read says so


class Watcher:
    """A thread that sleeps until something waits, and then sends it a little later."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._asked = False
        self._bell = threading.Semaphore(0)
        threading.Thread(target=self._run, name="gpulease-outbox", daemon=True).start()

    def look_later(self) -> None:
        if not self._asked:
            self._asked = True
            self._bell.release()

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            time.sleep(LONGEST)
            self._asked = False
            self._outbox.flush()
