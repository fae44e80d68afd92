"""One thread that waits for everything: descriptors, the clock, and calls from other threads."""

from __future__ import annotations

import heapq
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

Action = Callable[[], object]


class Reactor:
    """Actions run in its thread, one after another, so that they need no lock among themselves."""

    def __init__(self, name: str) -> None:
        self._poll = select.epoll()
        self._actions: dict[int, Action] = {}
        self._calls: deque[Action] = deque()
        self._timers: list[tuple[float, int, Action]] = []
        self._order = count()
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ending = threading.RLock()  # a signal may come while it is held
        self._running = True
        self.watch(self._awake, self._woken)
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def run(self) -> None:
        while self._running:
            for descriptor, _ in self._poll.poll(self._timeout()):
                action = self._actions.get(descriptor)  # one before it may have ended this one
                if action is not None:
                    _guarded(action)
            self._by_the_clock()
        self._poll.close()
        with self._ending:  # whoever wakes it later must not write to a descriptor that is somebody else's by then
            os.close(self._awake)
            self._awake = -1
            self._calls.clear()
            self._timers.clear()

    def join(self) -> None:
        """Wait until it has returned; nobody can wait for himself."""
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def stop(self) -> None:
        """From its own thread: return once what runs now is done."""
        self._running = False

    def watch(self, descriptor: int, action: Action, events: int = select.EPOLLIN) -> None:
        self._actions[descriptor] = action
        self._poll.register(descriptor, events)

    def change(self, descriptor: int, events: int) -> None:
        if descriptor in self._actions:
            self._poll.modify(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        if self._actions.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)

    def call(self, action: Action) -> None:
        """From any thread, even from the collector's midst. Once it has returned, nothing is kept or run."""
        with self._ending:
            if self._awake >= 0:
                self._calls.append(action)
                os.eventfd_write(self._awake, 1)

    @property
    def waker(self) -> int:
        """For `signal.set_wakeup_fd`, which writes a byte: a pipe's end, made when it is asked for."""
        ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(ours, lambda: os.read(ours, 512))
        return theirs

    def later(self, seconds: float, action: Action) -> None:
        """From its own thread."""
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), action))

    def _woken(self) -> None:
        os.eventfd_read(self._awake)
        while self._calls:
            _guarded(self._calls.popleft())

    def _timeout(self) -> float | None:
        return max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None

    def _by_the_clock(self) -> None:
        while self._timers and self._timers[0][0] <= time.monotonic():
            _guarded(heapq.heappop(self._timers)[2])


def _guarded(action: Action) -> None:
    """A mistake in one action must not leave everybody else waiting for ever."""
    try:
        action()
    except BaseException:  # a callback of the user's may even exit
        logging.getLogger("gpulease.pool").exception("the pool failed at one thing and goes on")
