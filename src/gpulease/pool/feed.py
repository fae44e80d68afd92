"""The items of one `map` on their way in, and their results until somebody takes them.

Input is read a bounded way ahead, so that an endless generator is no trouble, and by a thread, so that results come out
while it is slow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from gpulease.errors import GpuleaseError
from gpulease.pool.items import Function, Item
from gpulease.pool.pickling import Packed, pack_call

AHEAD = 1024  # items that are on their way at once
AHEAD_BYTES = 64 << 20
AT_LEAST = 32  # items, however large
CHUNK = 64  # items handed over at once
PROMPT = (list, tuple, range, str, bytes, dict, set, frozenset)  # to read these takes no time


class Runs(Protocol):
    def submit(self, items: list[Item], more: bool = False) -> None: ...


class MapItem(Item):
    __slots__ = ("error", "feed", "ready", "record_name", "value")

    def __init__(self, function: Function, packed: Packed, feed: Feed) -> None:
        super().__init__(function, packed)
        self.feed = feed
        self.ready = False
        self.record_name: str | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        return not self.feed.dropped

    def succeed(self, value: Any) -> None:
        if self.record_name is not None:
            try:
                self.feed.record.write(self.record_name, value)
            except GpuleaseError as error:
                return self.fail(error)
        self.value = value
        self.feed.arrived(self)

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.feed.arrived(self)

    def cancel(self) -> None:
        from concurrent.futures import CancelledError

        self.fail(CancelledError())


class Feed:
    """Puts the items of one `map` in, and keeps their results for whoever takes them."""

    def __init__(
        self,
        backend: Runs,
        function: Function,
        iterables: tuple[Iterable[Any], ...],
        ordered: bool,
        record: Any,
        bar: Any,
    ) -> None:
        self.record = record
        self.begun = False  # whether somebody has taken a result, or tried to
        self.dropped = False  # nobody wants what is not begun
        self._backend, self._function = backend, function
        self._bar = bar
        self._bar_lock = threading.RLock()
        self._input: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        self._prompt = all(type(each) in PROMPT for each in iterables)
        self._input_error: BaseException | None = None
        self._ordered = ordered
        self._waiting: deque[MapItem] = deque()  # in the order of the items
        self._results: deque[MapItem] = deque()  # in the order of results, when that is what is wanted
        # Each is written by one thread alone: by the one that feeds, or by the one that takes.
        self._fed = self._fed_bytes = self._taken = self._taken_bytes = 0
        self._ended = False  # nothing more is put in
        self._stopped = False  # nothing more is to be put in
        self._stop_error: BaseException | None = None  # what to raise in place of the rest
        self._unbounded = False  # all is to be put in, whether results are taken or not
        self._abandoned = False  # nobody will take results
        self._full = False  # the feeding thread waits for room
        self._room: SimpleQueue[None] = SimpleQueue()  # a bell too; the collector may ring either at any moment
        self._awaited: MapItem | None = None
        self._sleeping = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._on_end: Any = None

    # ---------------------------------------------------------------- from outside

    def start(self, on_end: Any) -> None:
        """`on_end(feed)` is called once all is put in. What takes no time to read needs no thread at first."""
        self._on_end = on_end
        if self._prompt:
            while not self._ended and self._has_room():
                self._step()
        if self._ended:
            return on_end(self)  # type: ignore[no-any-return]
        self._thread = threading.Thread(target=self._run, name="gpulease-map", daemon=True)
        self._thread.start()

    def run_all(self) -> None:
        """Put in the rest, although nobody may take results yet."""
        self._unbounded = True
        self._room.put(None)

    def abandon(self) -> None:
        """Run all, and keep nothing: nobody can ask for the results any more."""
        self._abandoned = True
        self._waiting.clear()
        self._results.clear()
        self.run_all()

    def stop(self, error: BaseException | None = None) -> None:
        """Put in nothing more; `error` is for whoever asks for the rest."""
        self._stop_error = error
        self._stopped = True
        self._room.put(None)
        self._bell.put(None)

    def drop(self) -> None:
        """Nothing more is wanted: what no worker has begun is dropped."""
        self.dropped = True
        self.stop()
        self._waiting.clear()
        self._results.clear()
        self.close_bar()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def close_bar(self) -> None:
        with self._bar_lock:
            bar, self._bar = self._bar, None
            if bar is not None:
                bar.close()

    def _advance(self, failed: bool) -> None:
        with self._bar_lock:
            if self._bar is not None:
                self._bar.advance(failed)
        self._check_bar()

    def _check_bar(self) -> None:
        """The bar ends with the last result, whoever takes it and when."""
        bar = self._bar
        if bar is not None and self._ended and bar.done == self._fed:
            self.close_bar()

    # ---------------------------------------------------------------- taking results

    def take(self, until: float | None) -> MapItem:
        """The next one. Raises what the input raised, or StopIteration, once there is none."""
        item = self._next_in_order(until) if self._ordered else self._next_arrived(until)
        self._taken += 1
        self._taken_bytes += item.packed.size
        if self._full and (self._fed - self._taken) * 2 <= AHEAD and self._has_room():
            self._room.put(None)
        return item

    def _next_in_order(self, until: float | None) -> MapItem:
        while not self._waiting:
            self._await_input(until)
        item = self._waiting[0]
        self._awaited = item
        while not item.ready:
            self._wait(until)
        return self._waiting.popleft()

    def _next_arrived(self, until: float | None) -> MapItem:
        while not self._results:
            self._await_input(until)
        return self._results.popleft()

    def _await_input(self, until: float | None) -> None:
        """Wait for more. The flag comes first: whatever happens after the look at the deques rings the bell."""
        self._sleeping = True
        ended = self._ended or (self._stopped and not self._prompt)  # nobody waits for a generator that is not wanted
        if not (self._waiting if self._ordered else self._results):
            if ended and self._fed == self._taken:
                self._sleeping = False
                self._finish()
            self._wait(until)
        self._sleeping = False

    def _wait(self, until: float | None) -> None:
        try:
            self._bell.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            raise TimeoutError("The results did not come in time; take them with a longer timeout.") from None

    def _finish(self) -> None:
        self.close_bar()
        error, self._input_error = self._input_error or self._stop_error, None
        self._stop_error = None
        if error is not None:
            raise error
        raise StopIteration

    def arrived(self, item: MapItem) -> None:
        """From the thread that reads results. An unordered one must be in the deque before it is announced."""
        item.ready = True
        if self._bar is not None:
            self._advance(item.error is not None)
        if self._abandoned:
            item.value = None
            return
        if not self._ordered:
            self._results.append(item)
        if self._awaited is item or (self._sleeping and not self._ordered):
            self._bell.put(None)

    # ---------------------------------------------------------------- putting items in

    def _run(self) -> None:
        while not self._ended:
            self._full = True  # before the look, so that whoever makes room after it rings
            while not self._has_room():
                self._room.get()
            self._full = False
            self._step()
        if self._on_end is not None:
            self._on_end(self)

    def _has_room(self) -> bool:
        if self._unbounded or self._stopped:
            return True
        ahead = self._fed - self._taken
        return ahead < AHEAD and (self._fed_bytes - self._taken_bytes < AHEAD_BYTES or ahead < AT_LEAST)

    def _step(self) -> None:
        """Some items at once where the input is there; else one, and the backend may wait a moment for more."""
        items = [] if self._stopped else self._read(CHUNK if self._prompt else 1)
        ended = self._stopped or not items
        try:
            if items:
                self._submit(items)
        except GpuleaseError as error:  # the pool was ended, or is broken
            self._input_error, ended = error, True
        if ended:
            if self._stop_error is not None and not self._more_is_there():
                self._stop_error = None
            self._ended = True
            self._input = iter(())
            self._check_bar()
        if self._sleeping:
            self._bell.put(None)

    def _more_is_there(self) -> bool:
        return not self._prompt or next(self._input, None) is not None

    def _read(self, most: int) -> list[MapItem]:
        items: list[MapItem] = []
        most = most if self._unbounded else min(most, max(1, AHEAD - self._fed + self._taken))
        try:
            for arguments in self._input:
                items.append(self._item(arguments))
                self._fed_bytes += items[-1].packed.size
                if len(items) >= most or self._fed_bytes - self._taken_bytes >= AHEAD_BYTES:
                    break
        except BaseException as error:  # of the generator
            self._input, self._input_error = iter(()), error
        return items

    def _item(self, arguments: tuple[Any, ...]) -> MapItem:
        """One that cannot be sent, named or read back fails in its place."""
        item = MapItem(self._function, Packed(b""), self)
        try:
            item.packed = pack_call(arguments, {}, self._function.name)
            self._name(item, arguments)
        except Exception as error:
            item.error, item.ready = error, True
        return item

    def _name(self, item: MapItem, arguments: tuple[Any, ...]) -> None:
        if self.record is None:
            return
        name = self.record.name(arguments, item.packed)
        if self.record.has(name):
            item.value, item.ready = self.record.read(name), True
        else:
            item.record_name = name

    def _submit(self, items: list[MapItem]) -> None:
        if self._ordered and not self._abandoned:
            self._waiting.extend(items)
        self._fed += len(items)
        for item in items:
            if item.ready:
                self.arrived(item)
        wanted: list[Item] = [item for item in items if not item.ready]
        if wanted:
            self._submit_wanted(wanted)

    def _submit_wanted(self, items: list[Item]) -> None:
        try:
            self._backend.submit(items, more=not self._prompt)
        except GpuleaseError as error:
            for item in items:
                item.fail(error)
            raise
