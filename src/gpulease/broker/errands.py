"""What touches users' folders, logs, journals and processes: done apart from the broker's loop, a thread for each user.

A file server that does not answer stops the thread of whoever uses it, and so delays that user's own jobs only.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from gpulease.broker.events import Event

Errand = Callable[[], Iterable[Event]]


class Errands:
    def __init__(self, poll: select.epoll, log: Callable[[str], None]) -> None:
        self._queues: dict[int, SimpleQueue[tuple[Errand, Iterable[Event]]]] = {}
        self._under_way: dict[int, int] = {}
        self._done: deque[tuple[int, list[Event]]] = deque()
        self._log = log
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        poll.register(self.descriptor, select.EPOLLIN)

    def busy(self, uid: int) -> bool:
        """Whether something of this user's is under way; then what comes next must wait for it."""
        return uid in self._under_way

    def add(self, uid: int, errand: Errand, otherwise: Iterable[Event] = ()) -> None:
        """`otherwise`: what happened if the errand fails, as by an error of a file server."""
        if uid not in self._queues:
            self._queues[uid] = SimpleQueue()
            threading.Thread(target=self._work, args=(uid,), name=f"user-{uid}", daemon=True).start()
        self._under_way[uid] = self._under_way.get(uid, 0) + 1
        self._queues[uid].put((errand, otherwise))

    def events(self) -> list[Event]:
        """What has been done since the last time."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            pass
        found: list[Event] = []
        while self._done:
            uid, events = self._done.popleft()
            self._under_way[uid] -= 1
            if not self._under_way[uid]:
                del self._under_way[uid]
            found += events
        return found

    def _work(self, uid: int) -> None:
        queue = self._queues[uid]
        while True:
            errand, otherwise = queue.get()
            try:
                events = list(errand())
            except Exception as trouble:
                self._log(f"an errand for user {uid} failed: {trouble!r}")
                events = list(otherwise)
            self._done.append((uid, events))
            os.eventfd_write(self.descriptor, 1)
