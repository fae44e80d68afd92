"""What `map` and `map_unordered` return: an iterator over results, in order or as they come.

The feed behind it lives on without it. Nobody may ever take the results: then the items run all the same, as the
standard library's do; whoever leaves a loop over them drops what no worker has begun.
"""

from __future__ import annotations

import time
from typing import Any

from gpulease.errors import UsageError
from gpulease.pool.feed import Feed, Wanted


class Mapped:
    """An iterator. An item that failed raises in its place, and the ones behind it can still be taken."""

    def __init__(self, feed: Feed, timeout: float | None, return_errors: bool, pool: object) -> None:
        self._feed = feed
        self._until = None if timeout is None else time.monotonic() + timeout
        self._return_errors = return_errors
        self._pool = pool  # kept while somebody iterates

    def __iter__(self) -> Mapped:
        return self

    def __next__(self) -> Any:
        if self._feed.wanted is Wanted.NOTHING:
            raise StopIteration
        self._feed.wanted = Wanted.NOW
        item = self._feed.take(self._until)
        if item.error is None:
            value, item.value = item.value, None  # the thread that completed it may still hold the item
            return value
        if self._return_errors:
            return item.error
        try:
            raise item.error
        finally:
            del item  # else the error's traceback would hold the result of the whole frame

    def close(self) -> None:
        """Nothing more is wanted: what no worker has begun is dropped."""
        self._feed.leave(Wanted.NOTHING)

    def __del__(self) -> None:
        if not hasattr(self, "_feed") or self._feed.wanted is Wanted.NOTHING:
            return
        # A loop that was left drops the rest. The collector may call this in a thread that holds any lock: the
        # reactor's thread does what needs one.
        feed, wanted = self._feed, Wanted.NOTHING if self._feed.wanted is Wanted.NOW else Wanted.RUN
        feed.wanted = wanted
        feed.engine.reactor.call(lambda: feed.leave(wanted))


def check_timeout(timeout: object) -> None:
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, (int, float))):
        raise UsageError(f"timeout is {timeout!r}.", "Give seconds, or None to wait as long as it takes.")
