"""One call that somebody waits for, where it runs, and how many a worker is given at a time.

Sending items one by one wastes the time between them; sending many ahead lets some wait behind a long one. So a worker
gets about `AHEAD` seconds of work by what the function took so far, one item while nothing is known; and whatever it
has not begun can be taken back at any moment. Calls of 4 ms and more go one at a time.
"""

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

    Items hold it, and not the function itself: what it refers to is released with the last of them.
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
    """What `on_start` gets: this item begins on this worker."""

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


# -------------------------------------------------------------------- how many at a time

AHEAD = 0.004  # seconds of work
DEEPEST = 128  # items
PATIENCE = 0.020  # seconds without a result after which unbegun items are taken back
WEIGHT = 0.2  # of the newest measurement


class Window(NamedTuple):
    """What one worker has. What is given is finished, or taken back and then skipped; each change is a new window."""

    in_flight: int = 0  # given, and neither finished nor taken back
    skipping: int = 0  # taken back; the worker has still to read them, and gets nothing new until then
    deepest: int = DEEPEST

    def room(self, seconds: float | None) -> int:
        """How many more that take `seconds` each. None before half is done: fewer, larger sends."""
        depth = self.depth(seconds)
        if self.skipping or self.in_flight > depth // 2:
            return 0
        return depth - self.in_flight

    def depth(self, seconds: float | None) -> int:
        if seconds is None:
            return 1
        return max(1, min(self.deepest, int(AHEAD / max(seconds, 1e-6))))

    def given(self, count: int) -> Window:
        return self._changed(self.in_flight + count, self.skipping)

    def finished(self) -> Window:
        return self._changed(self.in_flight - 1, self.skipping)

    def taken_back(self, count: int) -> Window:
        return self._changed(self.in_flight - count, self.skipping + count)

    def skipped(self) -> Window:
        return self._changed(self.in_flight, self.skipping - 1)

    def _changed(self, in_flight: int, skipping: int) -> Window:
        if in_flight < 0 or skipping < 0:
            raise ValueError(f"{self} cannot become in_flight={in_flight}, skipping={skipping}")
        return Window(in_flight, skipping, self.deepest)


def share(queued: int, workers: int) -> int:
    """The part of a queue that one worker may take, so that all of them begin."""
    return -(-queued // max(workers, 1))


def learn(known: float | None, measured: float) -> float:
    """An average that follows a change, upwards at once: too little ahead costs less than too much."""
    if known is None or measured > known * 8:
        return measured
    return known + WEIGHT * (measured - known)


def most_tries(retries: int) -> int:
    """How many workers an item may end: none of its own accord with `retries=0`, else one more than its tries.

    That last one is in a worker that did nothing before, so that a worn-out worker is not blamed on the item.
    """
    return 1 if retries == 0 else retries + 2
