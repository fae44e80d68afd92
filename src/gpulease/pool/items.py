"""One call that somebody waits for."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.pool.pickling import Packed


class Function:
    """A function as workers get it: once for each worker, under a key.

    Items hold it, and not the function itself: what it refers to is let go with the last of them.
    """

    __slots__ = ("__weakref__", "key", "name", "payload", "seconds")

    def __init__(self, key: int, name: str, payload: bytes) -> None:
        self.key = key
        self.name = name
        self.payload = payload
        self.seconds: float | None = None  # that one call takes, as measured so far


class Item:
    """A call, and the future for its result. Nothing keeps it once it is done."""

    __slots__ = ("begun", "deaths", "function", "future", "keep", "number", "packed")

    def __init__(self, function: Function, packed: Packed = Packed(b"")) -> None:  # noqa: B008  # it never changes
        self.function = function
        self.packed = packed
        self.future: Future[Any] = Future()
        self.keep: Callable[[Any], None] | None = None  # puts the result on disk before anybody sees it
        self.number = 0
        self.deaths = 0  # of workers that ran it
        self.begun = False

    def begin(self) -> bool:
        """Whether it is still wanted, now that a worker is there for it."""
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def succeed(self, value: Any) -> None:
        try:
            if self.keep is not None:
                self.keep(value)
        except GpuleaseError as error:
            return self.fail(error)
        self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if self.begin():
            self.future.set_exception(error)

    def cancel(self) -> None:
        """The pool was shut down before a worker was there for it."""
        self.future.cancel()
        self.begin()
