"""What still reads its input, for one pool: to close the pool is to wait for that first."""

from __future__ import annotations

import threading
from typing import Any

from gpulease.errors import PoolClosed
from gpulease.pool.feed import Feed


class Intake:
    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._feeds: set[Feed] = set()
        self._lock = threading.RLock()  # the collector may end a feed in a thread that holds it
        self._closing = False

    def check_open(self) -> None:
        if self._closing:
            self._backend.submit([])  # raises what broke it, where that is why
            raise PoolClosed("The pool was shut down and takes no more items.")

    def add(self, feed: Feed) -> None:
        self._backend.submit([])  # raises where it would
        with self._lock:
            self._feeds.add(feed)
        feed.start(self._fed)

    def close(self, cancel: bool = False, only_unbegun: bool = False) -> None:
        """All of the input that is here still goes in; with `only_unbegun`, only where nobody has taken a result."""
        with self._lock:
            self._closing = True
            stopped = {feed for feed in self._feeds if cancel or (only_unbegun and feed.begun)}
            self._feeds -= stopped  # nobody waits for an input that may never come
            rest = list(self._feeds)
        for feed in stopped:
            feed.stop(_no_rest(cancel))
        for feed in rest:
            feed.run_all()
        if not rest:
            self._backend.close(cancel)

    def terminate(self) -> None:
        with self._lock:
            self._closing = True
            feeds, self._feeds = self._feeds, set()
        for feed in feeds:
            feed.stop(_no_rest(False))
        self._backend.terminate()

    def join(self) -> None:
        for feed in list(self._feeds):
            feed.join()
        self._backend.join()

    def ended(self) -> bool:
        return bool(self._backend.ended())

    def _fed(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.discard(feed)
            last = self._closing and not self._feeds
        if last:
            self._backend.close()


def _no_rest(cancelled: bool) -> BaseException:
    from concurrent.futures import CancelledError

    return CancelledError() if cancelled else PoolClosed("The pool was shut down before all of the input was read.")
