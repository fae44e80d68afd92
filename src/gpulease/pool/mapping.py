"""`map` and `map_unordered`: items go in as they are needed, results come out in order or as they come.

Input is read a bounded way ahead, in the thread of whoever takes the results: an endless generator is no trouble.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from gpulease.errors import GpuleaseError
from gpulease.pool.items import Function, Item
from gpulease.pool.pickling import Packed, pack

AHEAD = 1024  # items that are on their way at once
AHEAD_BYTES = 64 << 20
AT_LEAST = 32  # items, however large
CHUNK = 64  # items handed over at once


class Runs(Protocol):
    def submit(self, items: list[Item]) -> None: ...


class MapItem(Item):
    __slots__ = ("cancelled", "error", "mapped", "ready", "record_name", "value")

    def __init__(self, function: Function, packed: Packed, mapped: Mapped) -> None:
        super().__init__(function, packed)
        self.mapped = mapped
        self.ready = False
        self.cancelled = False
        self.record_name: str | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        return not self.cancelled

    def succeed(self, value: Any) -> None:
        if self.record_name is not None:
            try:
                self.mapped.record.write(self.record_name, value)
            except GpuleaseError as error:
                return self.fail(error)
        self.value = value
        self.mapped.arrived(self)

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.mapped.arrived(self)

    def cancel(self) -> None:
        from concurrent.futures import CancelledError

        self.fail(CancelledError())


class Mapped:
    """An iterator. An item that failed raises in its place, and the ones behind it can still be taken."""

    def __init__(
        self,
        backend: Runs,
        function: Function,
        iterables: tuple[Iterable[Any], ...],
        *,
        ordered: bool,
        timeout: float | None,
        record: Any,
        bar: Any,
        return_errors: bool,
        pool: object,
    ) -> None:
        self.record = record
        self._backend, self._function = backend, function
        self._input: Iterator[tuple[Any, ...]] | None = zip(*iterables, strict=False)
        self._input_error: BaseException | None = None
        self._until = None if timeout is None else time.monotonic() + timeout
        self._return_errors = return_errors
        self._pool = pool  # kept while somebody iterates
        self._bar = bar
        self._ordered = ordered
        self._waiting: deque[MapItem] = deque()  # in the order of the items
        self._arrived: deque[MapItem] = deque()  # in the order of results, when that is what is wanted
        self._outstanding, self._bytes = 0, 0
        self._awaited: MapItem | None = None
        self._sleeping = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._feed()

    # ---------------------------------------------------------------- taking results

    def __iter__(self) -> Mapped:
        return self

    def __next__(self) -> Any:
        if self._input is not None and self._outstanding * 2 <= AHEAD:
            self._feed()
        if not self._outstanding:
            self._end()
        item = self._next_in_order() if self._ordered else self._next_arrived()
        self._outstanding -= 1
        self._bytes -= item.packed.size
        if item.error is None:
            return item.value
        if self._return_errors:
            return item.error
        try:
            raise item.error
        finally:
            del item  # else the error's traceback would hold the result of the whole frame

    def close(self) -> None:
        """Nothing more is wanted: what no worker has begun is dropped."""
        self._input = None
        for item in self._waiting:
            item.cancelled = True
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __del__(self) -> None:
        if hasattr(self, "_waiting"):
            self.close()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        error, self._input_error = self._input_error, None
        if error is not None:
            raise error
        raise StopIteration

    def _next_in_order(self) -> MapItem:
        item = self._waiting[0]
        self._awaited = item
        while not item.ready:
            self._wait()
        return self._waiting.popleft()

    def _next_arrived(self) -> MapItem:
        self._sleeping = True
        while not self._arrived:
            self._wait()
        self._sleeping = False
        return self._arrived.popleft()

    def _wait(self) -> None:
        try:
            self._bell.get(timeout=None if self._until is None else max(0.0, self._until - time.monotonic()))
        except Empty:
            raise TimeoutError("The results did not come in time; take them with a longer timeout.") from None

    def arrived(self, item: MapItem) -> None:
        """From the thread that reads results. An unordered one must be in the deque before it is announced."""
        item.ready = True
        if self._bar is not None:
            self._bar.advance(item.error is not None)
        if not self._ordered:
            self._arrived.append(item)
        if self._sleeping or self._awaited is item:
            self._bell.put(None)

    # ---------------------------------------------------------------- putting items in

    def _feed(self) -> None:
        while self._input is not None and self._may_feed():
            self._submit(self._take(min(CHUNK, AHEAD - self._outstanding)))

    def _may_feed(self) -> bool:
        return self._outstanding < AHEAD and (self._bytes < AHEAD_BYTES or self._outstanding < AT_LEAST)

    def _take(self, most: int) -> list[MapItem]:
        items: list[MapItem] = []
        what = f"An argument of {self._function.name}"
        try:
            for _ in range(most):
                arguments = next(self._input)  # type: ignore[arg-type]
                item = MapItem(self._function, pack((arguments, {}), what), self)
                self._name(item, arguments)
                items.append(item)
                self._bytes += item.packed.size
                if self._bytes >= AHEAD_BYTES:
                    break
        except StopIteration:
            self._input = None
        except BaseException as error:  # of the generator, or of an argument that cannot be pickled
            self._input, self._input_error = None, error
        return items

    def _name(self, item: MapItem, arguments: tuple[Any, ...]) -> None:
        if self.record is None:
            return
        name = self.record.name(arguments, item.packed)
        if self.record.has(name):
            item.value, item.ready = self.record.read(name), True
        else:
            item.record_name = name

    def _submit(self, items: list[MapItem]) -> None:
        self._outstanding += len(items)
        self._waiting.extend(items)
        for item in items:
            if item.ready:
                self.arrived(item)
        self._backend.submit([item for item in items if not item.ready])
