"""One call that somebody waits for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

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
    """Whoever makes one says what becomes of its result."""

    __slots__ = ("deaths", "function", "number", "packed")

    def __init__(self, function: Function, packed: Packed) -> None:
        self.function = function
        self.packed = packed
        self.number = 0
        self.deaths = 0

    def begin(self) -> bool:
        """Whether it is still wanted, now that a worker is there for it."""
        return True

    def succeed(self, value: Any) -> None:
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        raise NotImplementedError

    def cancel(self) -> None:
        """The pool was shut down before a worker was there for it."""
        raise NotImplementedError


class FutureItem(Item):
    __slots__ = ("begun", "future")

    def __init__(self, function: Function, packed: Packed) -> None:
        super().__init__(function, packed)
        self.future: Future[Any] = Future()
        self.begun = False

    def begin(self) -> bool:
        if not self.begun:
            self.begun = self.future.set_running_or_notify_cancel()
        return self.begun

    def succeed(self, value: Any) -> None:
        self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if self.begin():
            self.future.set_exception(error)

    def cancel(self) -> None:
        self.future.cancel()
        self.begin()
