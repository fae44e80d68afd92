"""Proof of death: a pidfd for each process whose end matters. The kernel tells; nothing polls."""

from __future__ import annotations

import os
import resource
import select
from errno import EMFILE

from gpulease.system import identity

ProcessKey = tuple[int, int | None]  # pid, start time


class Reaper:
    """Watches processes on the broker's epoll, with at most a third of the descriptors that there are."""

    def __init__(self, poll: select.epoll, most: int | None = None) -> None:
        self._poll = poll
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 3 if most is None else most
        self._by_key: dict[ProcessKey, int] = {}
        self._by_descriptor: dict[int, ProcessKey] = {}
        self._idle: set[ProcessKey] = set()  # nobody's any more; who asked once often asks again
        self._unwatched: set[ProcessKey] = (
            set()
        )  # for want of a descriptor: they count as alive, and are looked at again

    def watch(self, pid: int, start_time: int | None) -> bool:
        """Watch a process; False when it is gone for certain: no such pid, or another process under it."""
        key = (pid, start_time)
        if key in self._by_key:
            self._idle.discard(key)
            return True
        try:
            return self._watch(key)
        except OSError:
            self._unwatched.add(key)
            return True

    def _watch(self, key: ProcessKey) -> bool:
        pid, start_time = key
        descriptor = identity.pidfd(pid)
        if descriptor is None:
            return False
        try:
            # Only now look who it is: the descriptor pins the process, so the answer cannot be another's.
            seen = identity.start_time(pid)
            if seen is not None and start_time is not None and seen != start_time:
                return False
            if len(self._by_key) >= self._most:
                raise OSError(EMFILE, "no descriptor is left for this")
            self._poll.register(descriptor, select.EPOLLIN)
            self._by_key[key], self._by_descriptor[descriptor] = descriptor, key
            return True
        finally:
            if descriptor not in self._by_descriptor:
                os.close(descriptor)

    def recheck(self) -> list[ProcessKey]:
        """Processes that could not be watched, and are gone now; the others are watched if there is room again."""
        unwatched, self._unwatched = self._unwatched, set()
        return [key for key in unwatched if not self.watch(*key)]

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._by_descriptor

    def ended(self, descriptor: int) -> ProcessKey:
        """The process behind a descriptor that became readable: it has ended."""
        key = self._by_descriptor.pop(descriptor)
        self._drop(key, descriptor)
        return key

    def forget(self, key: ProcessKey) -> None:
        """Nobody cares for it now; `sweep` lets it go."""
        self._unwatched.discard(key)
        if key in self._by_key:
            self._idle.add(key)

    def sweep(self) -> None:
        idle, self._idle = self._idle, set()
        for key in idle:
            descriptor = self._by_key[key]
            del self._by_descriptor[descriptor]
            self._drop(key, descriptor)

    def _drop(self, key: ProcessKey, descriptor: int) -> None:
        del self._by_key[key]
        self._idle.discard(key)
        self._poll.unregister(descriptor)
        os.close(descriptor)
