"""A worker's results on their way out: short ones a few at a time, and none kept for long.

One send for each result costs the pool a wake-up each. So the results of short calls wait for each other while more
calls are at hand; a thread sends what has waited, should the next call turn out to be a long one. They wait in memory
that the pool holds too: should the worker die, the pool finds what was done there, and only the item that ran is lost.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import threading
import time

from gpulease.pool import frames

SHORT = 0.0005  # seconds that a call takes at most for its result to wait
MOST = 32  # results that wait for each other: a quarter of what a worker has ahead
LONGEST = 0.002  # seconds that one waits
PAGE = 1 << 16  # bytes of results that wait
FILLED = struct.Struct("<Q")  # at the page's begin: how much of it counts


def make_page() -> int:
    """A descriptor of the memory in which results wait."""
    page = os.memfd_create("gpulease-results", os.MFD_CLOEXEC)
    os.ftruncate(page, PAGE)
    return page


def left_in(page: int) -> bytes:
    """What a worker that is gone had not sent, or was about to send; it may have come by the other way too."""
    head = os.pread(page, FILLED.size, 0)
    filled: int = FILLED.unpack(head)[0] if len(head) == FILLED.size else 0
    return os.pread(page, filled - FILLED.size, FILLED.size) if FILLED.size < filled <= PAGE else b""


class Outbox:
    def __init__(self, connected: socket.socket, page: int) -> None:
        self._socket = connected
        self._page = memoryview(mmap.mmap(page, PAGE))
        self._filled, self._count = FILLED.size, 0
        self._lock = threading.Lock()
        self._watcher: Watcher | None = None

    def send(self, data: bytes, seconds: float, more: bool, descriptor: int | None = None) -> None:
        """`more`: whether other calls are at hand."""
        with self._lock:
            kept = descriptor is None and self._keep(data)
            if not kept or not more or seconds > SHORT or self._count >= MOST:
                self._flush()
                if not kept:
                    self._send(data, descriptor)
                return
        if self._watcher is None:
            self._watcher = Watcher(self)
        self._watcher.look_later()

    def flush(self) -> None:
        with self._lock:
            self._flush()

    def close(self) -> None:
        """The program is gone: nothing is to be sent, and its thread may end."""
        with self._lock:
            self._count = 0
            if self._watcher is not None:
                self._watcher.end()

    def _keep(self, data: bytes) -> bool:
        """The bytes first, then that they count: whoever dies in between leaves no half of a result."""
        end = self._filled + len(data)
        if end > PAGE:
            return False
        self._page[self._filled : end] = data
        self._filled = end
        self._count += 1
        FILLED.pack_into(self._page, 0, end)
        return True

    def _flush(self) -> None:
        if self._count:
            self._send(self._page[FILLED.size : self._filled], None)
            self._filled, self._count = FILLED.size, 0
            FILLED.pack_into(self._page, 0, FILLED.size)

    def _send(self, data: bytes | memoryview, descriptor: int | None) -> None:
        try:
            if descriptor is None:
                self._socket.sendall(data)
            else:
                frames.send_all(self._socket, bytes(data), [descriptor])
        except OSError:
            pass  # nobody waits for it any more; the next read says so


class Watcher:
    """A thread that sleeps until something waits, and then sends it a little later."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._asked = self._ended = False
        self._bell = threading.Semaphore(0)
        threading.Thread(target=self._run, name="gpulease-outbox", daemon=True).start()

    def look_later(self) -> None:
        if not self._asked:
            self._asked = True
            self._bell.release()

    def end(self) -> None:
        self._ended = True
        self._bell.release()

    def _run(self) -> None:
        while True:
            self._bell.acquire()
            if self._ended:
                return
            time.sleep(LONGEST)
            self._asked = False
            self._outbox.flush()
