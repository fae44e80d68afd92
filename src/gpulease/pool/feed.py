"""`map`: its items on their way in, and their results until somebody takes them.

Input is read a bounded way ahead, so that an endless generator works, and by a thread, so that results come out
while it is slow. Nobody may ever take the results: then the items run all the same, as the standard library's do;
leaving a loop over them drops what no worker has begun.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpulease.errors import GpuleaseError, PoolClosed
from gpulease.pool.items import Function, Item
from gpulease.pool.pickling import pack_call
from gpulease.pool.progress import DONE, DROPPED, FAILED, STORED

if TYPE_CHECKING:
    from gpulease.pool.engine import Engine
    from gpulease.pool.record import Record

AHEAD = 1024  # items that are on their way at once
AHEAD_BYTES = 64 << 20
AT_LEAST = 32  # items, however large
CHUNK = 64  # items handed over at once
PROMPT = (list, tuple, range, str, bytes, dict, set, frozenset)  # to read these takes no time

T = TypeVar("T")


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


class Feed:
    """Puts the items of one `map` in, and keeps their results until they are taken. One lock guards all of it."""

    def __init__(
        self,
        engine: Engine,
        function: Function,
        iterables: tuple[Iterable[Any], ...],
        ordered: bool,
        record: Record | None,
        bar: Any,
    ) -> None:
        self.engine = engine
        self.wanted = Wanted.LATER
        self._function, self._record, self._bar, self._ordered = function, record, bar, ordered
        self._input: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        self._prompt = all(type(each) in PROMPT for each in iterables)
        self._reading = Reading.AHEAD
        self._error: BaseException | None = None  # what to raise in place of the rest
        self._untaken: dict[Future[Any], int] = {}  # in the order of items; the bytes of their arguments
        self._arrived: deque[Future[Any]] = deque()  # in the order of results
        self._fed = self._bytes = 0  # items that were put in; bytes of those that were not taken
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
        """Put in nothing more; `error` is raised to callers that ask for the rest."""
        with self._changed:
            if self._reading is not Reading.ENDED:
                self._reading = Reading.STOPPED
                self._error = self._error or error
            self._changed.notify_all()

    def leave(self, wanted: Wanted) -> None:
        """Nobody takes results any more: run the items all the same, or drop what no worker has begun."""
        with self._changed:
            self.wanted = wanted
            left = list(self._untaken)
            self._untaken.clear()
            self._arrived.clear()
        if wanted is Wanted.RUN:
            return self.run_all()
        self.stop()
        for future in left:
            future.cancel()
        self._close_bar()

    def join(self) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    # ---------------------------------------------------------------- taking results

    def take(self, until: float | None) -> Future[Any]:
        """The next one, done. Raises what the input raised, or StopIteration, once there is none."""
        with self._changed:
            while (future := self._next()) is None:
                if self._is_exhausted():
                    self._finish()
                if not self._changed.wait(None if until is None else max(0.0, until - time.monotonic())):
                    raise TimeoutError("The results did not come in time; take them with a longer timeout.")
            self._bytes -= self._untaken.pop(future)
            if len(self._untaken) * 2 <= AHEAD:
                self._changed.notify_all()
        return future

    def _next(self) -> Future[Any] | None:
        if not self._ordered:
            return self._arrived.popleft() if self._arrived else None
        first = next(iter(self._untaken), None)
        return first if first is not None and first.done() else None

    def _is_exhausted(self) -> bool:
        # Nobody waits for a generator that is not wanted.
        ended = self._reading is Reading.ENDED or (self._reading is Reading.STOPPED and not self._prompt)
        return ended and not self._untaken

    def _finish(self) -> None:
        self._close_bar()
        error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def _done(self, future: Future[Any], stored: bool = False) -> None:
        """In the thread that reads results, or that feeds."""
        with self._changed:
            if self._bar is not None:
                self._bar.advance(_end_of(future, stored))
                self._check_bar()
            if future in self._untaken and not self._ordered:
                self._arrived.append(future)
            self._changed.notify_all()

    def _check_bar(self) -> None:
        """The bar ends with the last result, whenever that is taken."""
        if self._bar is not None and self._reading is Reading.ENDED and self._bar.ended == self._fed:
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
        ahead = len(self._untaken)
        return ahead < AHEAD and (self._bytes < AHEAD_BYTES or ahead < AT_LEAST)

    def _step(self) -> None:
        """Some items at once where the input is there; else one."""
        items: list[Item] = []
        most = min(CHUNK, max(1, AHEAD - len(self._untaken))) if self._prompt else 1
        size = self._bytes
        try:
            while self._reading is not Reading.STOPPED and len(items) < most and (size < AHEAD_BYTES or not items):
                items.append(self._item(next(self._input)))
                size += items[-1].packed.size
        except StopIteration:
            pass
        except BaseException as error:  # of the generator
            self._input, self._error = iter(()), error
        if not items or not self._put_in(items):
            self._end()

    def _item(self, arguments: tuple[Any, ...]) -> Item:
        """One that cannot be sent, named or read back fails in its place."""
        item = Item(self._function)
        try:
            item.packed = pack_call(arguments, {}, self._function.name)
            if self._record is not None:
                self._record.look_up(item, arguments)
        except Exception as error:
            item.fail(error)
        return item

    def _put_in(self, items: list[Item]) -> bool:
        """Whether more can be put in: else the pool was ended, or is broken."""
        with self._changed:
            self._fed += len(items)
            for item in items:
                if self.wanted in (Wanted.LATER, Wanted.NOW):
                    self._untaken[item.future] = item.packed.size
                    self._bytes += item.packed.size
        for item in items:
            item.future.add_done_callback(partial(self._done, stored=item.future.done()))
        waiting = [item for item in items if not item.future.done()]
        try:
            if waiting:
                self.engine.submit(waiting, self)
            return True
        except GpuleaseError as error:
            self._error = error
            for item in waiting:
                item.fail(error)
            return False

    def _end(self) -> None:
        with self._changed:
            if self._reading is Reading.STOPPED and self._prompt and next(self._input, None) is None:
                self._error = None  # nothing is missing
            self._reading = Reading.ENDED
            self._input = iter(())
            del self._function
            if self._record is not None and self._record.reused and self._bar is None:  # the bar counts them too
                self._record.say_reused(self._fed)
            self._check_bar()
            self._changed.notify_all()


def _end_of(future: Future[Any], stored: bool) -> str:
    """What the bar counts: an item of a pool that was ended has not failed."""
    if future.cancelled() or isinstance(error := future.exception(), PoolClosed):
        return DROPPED
    if error is not None:
        return FAILED
    return STORED if stored else DONE


class Mapped(Generic[T]):
    """What `map` returns. An item that failed raises in its place, and the ones behind it can still be taken."""

    def __init__(self, feed: Feed, timeout: float | None, return_errors: bool, pool: object) -> None:
        self._feed = feed
        self._until = None if timeout is None else time.monotonic() + timeout
        self._return_errors = return_errors
        self._pool = pool  # kept while somebody iterates

    def __iter__(self) -> Mapped[T]:
        return self

    def __next__(self) -> T:
        if self._feed.wanted is Wanted.NOTHING:
            raise StopIteration
        self._feed.wanted = Wanted.NOW
        future = self._feed.take(self._until)
        try:
            result: T = future.result(0)
            return result
        except BaseException as error:
            if not self._return_errors:
                raise
            return error  # type: ignore[return-value]  # as was asked for: T has it then
        finally:
            del future  # else the error's traceback would hold it

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
