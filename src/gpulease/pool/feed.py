"""The items of one `map` on their way in, and their results until somebody takes them.

Input is read a bounded way ahead, so that an endless generator is no trouble, and by a thread, so that results come out
while it is slow. One lock guards all of it; nothing of the user's is called while it is held.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from gpulease.errors import GpuleaseError, PoolClosed
from gpulease.pool.items import Function, Item
from gpulease.pool.pickling import Packed, pack_call

if TYPE_CHECKING:
    from gpulease.pool.engine import Engine

AHEAD = 1024  # items that are on their way at once
AHEAD_BYTES = 64 << 20
AT_LEAST = 32  # items, however large
CHUNK = 64  # items handed over at once
PROMPT = (list, tuple, range, str, bytes, dict, set, frozenset)  # to read these takes no time


class Reading(enum.Enum):
    AHEAD = enum.auto()  # a bounded way ahead of what was taken
    ALL = enum.auto()  # to the end, whether results are taken or not
    STOPPED = enum.auto()  # no further
    ENDED = enum.auto()  # all that will ever be put in was put in


class Wanted(enum.Enum):
    LATER = enum.auto()  # nobody has asked for a result yet
    NOW = enum.auto()
    RUN = enum.auto()  # the items are to run; nobody can ask for results any more
    NOTHING = enum.auto()  # nor is anything to run that no worker has begun


class MapItem(Item):
    __slots__ = ("error", "feed", "ready", "record_name", "size", "value")

    def __init__(self, function: Function, feed: Feed) -> None:
        super().__init__(function, Packed(b""))
        self.feed = feed
        self.size = 0  # of its arguments, which are let go once it is done
        self.ready = False
        self.record_name: str | None = None
        self.value: Any = None
        self.error: BaseException | None = None

    def begin(self) -> bool:
        return self.feed.wanted is not Wanted.NOTHING

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
        engine: Engine,
        function: Function,
        iterables: tuple[Iterable[Any], ...],
        ordered: bool,
        record: Any,
        bar: Any,
    ) -> None:
        self.engine, self.record = engine, record
        self.wanted = Wanted.LATER
        self._function = function
        self._input: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        self._prompt = all(type(each) in PROMPT for each in iterables)
        self._reading = Reading.AHEAD
        self._error: BaseException | None = None  # what to raise in place of the rest
        self._ordered = ordered
        self._results: deque[MapItem] = deque()  # in order: all that were put in; else those that are done
        self._fed = self._taken = self._bytes = 0  # bytes: of what was put in and not taken
        self._bar = bar
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    # ---------------------------------------------------------------- from outside

    def start(self, on_end: Callable[[Feed], None]) -> None:
        """`on_end(feed)` is called once all is put in. What takes no time to read needs no thread at first."""
        while self._prompt and self._reading is not Reading.ENDED and self._has_room():
            self._step()
        if self._reading is Reading.ENDED:
            return on_end(self)
        self._thread = threading.Thread(target=self._run, args=(on_end,), name="gpulease-map", daemon=True)
        self._thread.start()

    def run_all(self) -> None:
        """Put in the rest, although nobody may take results yet."""
        with self._changed:
            if self._reading is Reading.AHEAD:
                self._reading = Reading.ALL
            self._changed.notify_all()

    def stop(self, error: BaseException | None = None) -> None:
        """Put in nothing more; `error` is for whoever asks for the rest."""
        with self._changed:
            if self._reading is not Reading.ENDED:
                self._reading = Reading.STOPPED
                self._error = self._error or error
            self._changed.notify_all()

    def leave(self, wanted: Wanted) -> None:
        """Nobody takes results any more: run the items all the same, or drop what no worker has begun."""
        with self._changed:
            self.wanted = wanted
            self._results.clear()
        if wanted is Wanted.RUN:
            return self.run_all()
        self.stop()
        self._close_bar()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ---------------------------------------------------------------- taking results

    def take(self, until: float | None) -> MapItem:
        """The next one. Raises what the input raised, or StopIteration, once there is none."""
        with self._changed:
            while not self._next_is_ready():
                if self._is_exhausted():
                    self._finish()
                self._wait(until)
            item = self._results.popleft()
            self._taken += 1
            self._bytes -= item.size
            if (self._fed - self._taken) * 2 <= AHEAD:
                self._changed.notify_all()
        return item

    def _next_is_ready(self) -> bool:
        return bool(self._results) and (not self._ordered or self._results[0].ready)

    def _is_exhausted(self) -> bool:
        # Nobody waits for a generator that is not wanted.
        ended = self._reading is Reading.ENDED or (self._reading is Reading.STOPPED and not self._prompt)
        return ended and self._fed == self._taken

    def _wait(self, until: float | None) -> None:
        if not self._changed.wait(None if until is None else max(0.0, until - time.monotonic())):
            raise TimeoutError("The results did not come in time; take them with a longer timeout.")

    def _finish(self) -> None:
        self._close_bar()
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def arrived(self, item: MapItem) -> None:
        """From the thread that reads results, or that feeds."""
        with self._changed:
            item.ready = True
            item.packed = Packed(b"")
            if self._bar is not None:
                self._bar.advance(item.error is not None)
                self._check_bar()
            if self.wanted in (Wanted.RUN, Wanted.NOTHING):
                item.value = None
                return
            if not self._ordered:
                self._results.append(item)
            if self._next_is_ready():
                self._changed.notify_all()

    def _check_bar(self) -> None:
        """The bar ends with the last result, whoever takes it and when."""
        if self._bar is not None and self._reading is Reading.ENDED and self._bar.done == self._fed:
            self._close_bar()

    def _close_bar(self) -> None:
        with self._changed:
            bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    # ---------------------------------------------------------------- putting items in

    def _run(self, on_end: Callable[[Feed], None]) -> None:
        while self._reading is not Reading.ENDED:
            with self._changed:
                self._changed.wait_for(self._has_room)
            self._step()
        on_end(self)

    def _has_room(self) -> bool:
        if self._reading is not Reading.AHEAD:
            return True
        ahead = self._fed - self._taken
        return ahead < AHEAD and (self._bytes < AHEAD_BYTES or ahead < AT_LEAST)

    def _step(self) -> None:
        """Some items at once where the input is there; else one."""
        items = self._read(CHUNK if self._prompt else 1)
        try:
            if items:
                return self._put_in(items)
        except GpuleaseError as error:  # the pool was ended, or is broken
            self._error = error
        self._end()

    def _end(self) -> None:
        with self._changed:
            if self._reading is Reading.STOPPED and self._prompt and next(self._input, None) is None:
                self._error = None  # nothing is missing
            self._reading = Reading.ENDED
            self._input = iter(())
            del self._function
            self._check_bar()
            self._changed.notify_all()

    def _read(self, most: int) -> list[MapItem]:
        items: list[MapItem] = []
        read = 0
        if self._reading is Reading.AHEAD:
            most = min(most, max(1, AHEAD - self._fed + self._taken))
        try:
            while self._reading is not Reading.STOPPED:
                item = self._item(next(self._input))
                items.append(item)
                read += item.size
                if len(items) >= most or self._bytes + read >= AHEAD_BYTES:
                    break
        except StopIteration:
            pass
        except BaseException as error:  # of the generator
            self._input, self._error = iter(()), error
        return items

    def _item(self, arguments: tuple[Any, ...]) -> MapItem:
        """One that cannot be sent, named or read back fails in its place."""
        item = MapItem(self._function, self)
        try:
            item.packed = pack_call(arguments, {}, self._function.name)
            item.size = item.packed.size
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

    def _put_in(self, items: list[MapItem]) -> None:
        with self._changed:
            self._fed += len(items)
            self._bytes += sum(item.size for item in items)
            if self._ordered and self.wanted in (Wanted.LATER, Wanted.NOW):
                self._results.extend(items)
        for item in items:
            if item.ready:
                self.arrived(item)
        waiting = [item for item in items if not item.ready]
        try:
            if waiting:
                self.engine.submit(waiting)
        except GpuleaseError as error:
            for item in waiting:
                item.fail(error)
            raise


class Intake:
    """What still reads its input, for one pool: to close the pool is to wait for that first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._feeds: set[Feed] = set()
        self._lock = threading.RLock()
        self._closing = False

    def check_open(self) -> None:
        self._engine.check_open()  # raises what broke it, where that is why
        if self._closing:
            raise PoolClosed("The pool was shut down and takes no more items.")

    def add(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.add(feed)
        feed.start(self._fed)

    def close(self, cancel: bool = False, only_unbegun: bool = False) -> None:
        """All of the input that is here still goes in; with `only_unbegun`, only where nobody has taken a result."""
        with self._lock:
            self._closing = True
            stopped = {feed for feed in self._feeds if cancel or (only_unbegun and feed.wanted is Wanted.NOW)}
            self._feeds -= stopped  # nobody waits for an input that may never come
            rest = list(self._feeds)
        for feed in stopped:
            feed.stop(_no_rest(cancel))
        for feed in rest:
            feed.run_all()
        if not rest:
            self._engine.close(cancel)

    def terminate(self) -> None:
        with self._lock:
            self._closing = True
            feeds, self._feeds = self._feeds, set()
        for feed in feeds:
            feed.stop(_no_rest(False))
        self._engine.terminate()

    def join(self) -> None:
        for feed in list(self._feeds):
            feed.join()
        self._engine.join()

    def ended(self) -> bool:
        return self._engine.ended()

    def _fed(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.discard(feed)
            last = self._closing and not self._feeds
        if last:
            self._engine.close()


def _no_rest(cancelled: bool) -> BaseException:
    from concurrent.futures import CancelledError

    return CancelledError() if cancelled else PoolClosed("The pool was shut down before all of the input was read.")
