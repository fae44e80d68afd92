"""Proof of death: a pidfd for each process whose end matters. The kernel tells; nothing polls."""

from __future__ import annotations

import os
import select

from gpulease import identity

Key = tuple[int, int | None]  # pid, start time


class Reaper:
    """Watches processes on the broker's epoll."""

    def __init__(self, poll: select.epoll) -> None:
        self._poll = poll
        self._by_key: dict[Key, int] = {}
        self._by_descriptor: dict[int, Key] = {}
        self._idle: set[Key] = set()  # nobody's any more; who asked once often asks again

    def watch(self, pid: int, start_time: int | None) -> bool:
        """Watch a process; False when it is gone for certain: no such pid, or another process under it."""
        key = (pid, start_time)
        if key in self._by_key:
            self._idle.discard(key)
            return True
        descriptor = identity.pidfd(pid)
        if descriptor is None:
            return False
        # Only now look who it is: the descriptor pins the process, so the answer cannot be another's.
        seen = identity.start_time(pid)
        if seen is not None and start_time is not None and seen != start_time:
            os.close(descriptor)
            return False
        self._by_key[key] = descriptor
        self._by_descriptor[descriptor] = key
        self._poll.register(descriptor, select.EPOLLIN)
        return True

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._by_descriptor

    def ended(self, descriptor: int) -> Key:
        """The process behind a descriptor that became readable: it has ended."""
        key = self._by_descriptor.pop(descriptor)
        self._drop(key, descriptor)
        return key

    def forget(self, key: Key) -> None:
        """Nobody cares for it now; `sweep` lets it go."""
        if key in self._by_key:
            self._idle.add(key)

    def sweep(self) -> None:
        idle, self._idle = self._idle, set()
        for key in idle:
            descriptor = self._by_key[key]
            del self._by_descriptor[descriptor]
            self._drop(key, descriptor)

    def _drop(self, key: Key, descriptor: int) -> None:
        del self._by_key[key]
        self._idle.discard(key)
        self._poll.unregister(descriptor)
        os.close(descriptor)
