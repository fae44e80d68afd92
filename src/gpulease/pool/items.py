"""One call that somebody waits for, and where it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from gpulease.errors import GpuleaseError
from gpulease.pool.pickling import Packed, unpack

T = TypeVar("T")


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


class WorkerPlace(NamedTuple):
    """A worker, and the GPUs that it holds."""

    worker: str  # as in the log: `worker 1`
    gpus: str  # as worker().gpus: `0,3`
    device: int | str | None  # the first of them: its index, or the label of a MIG instance


def place_of(worker: str, gpus: str) -> WorkerPlace:
    first = gpus.partition(",")[0]
    return WorkerPlace(worker, gpus, int(first) if first.isdecimal() else first or None)


class PoolFuture(Future[T]):
    """Knows its worker as long as it runs, and afterwards."""

    place: WorkerPlace | None = None

    @property
    def worker(self) -> str | None:
        return None if self.place is None else self.place.worker

    @property
    def gpus(self) -> str | None:
        return None if self.place is None else self.place.gpus

    @property
    def device(self) -> int | str | None:
        return None if self.place is None else self.place.device


class Item:
    """A call, and the future for its result. Nothing keeps it once it is done."""

    __slots__ = ("begun", "deaths", "function", "future", "keep", "number", "packed")

    def __init__(self, function: Function, packed: Packed = Packed(b"")) -> None:  # noqa: B008  # it never changes
        self.function = function
        self.packed = packed
        self.future: PoolFuture[Any] = PoolFuture()
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
        _tell(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        if self.begin():
            _tell(self.future.set_exception, error)

    def cancel(self) -> None:
        """The pool was shut down before a worker was there for it."""
        self.future.cancel()
        self.begin()


def _tell(tell: Callable[[Any], None], what: Any) -> None:
    """A callback of the user's that exits ends neither the pool's thread nor what it has left to do."""
    try:
        tell(what)
    except BaseException:
        logging.getLogger("gpulease.pool").exception("a callback of a future failed")


class ItemStart:
    """What `on_start` is told: this item begins on this worker."""

    def __init__(self, item: Item, place: WorkerPlace) -> None:
        self.future = item.future
        self.number = item.number  # in the order in which the pool was given items, from 1
        self.function = item.function.name
        self.worker, self.gpus, self.device = place
        self._packed = item.packed

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The item's positional ones. Large arrays are not copied: only look at them."""
        return tuple(unpack(*self._packed)[0])

    def __repr__(self) -> str:
        return f"<item {self.number}, {self.function}, on {self.worker}, GPU {self.gpus}>"
