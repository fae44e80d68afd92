"""Gives items to workers: the queue, who gets how much, what is taken back, and what becomes of a dead worker's items.

State is guarded by one lock, so that a call goes out from the caller's own thread when a worker is idle; results are
read in the reactor's thread. Where workers come from (this machine, a named pool, Ray) is the source's affair.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from itertools import count
from typing import Any

from gpulease.errors import GpuleaseError, PoolClosed, TaskFailed, UsageError
from gpulease.pool.failures import Ending, died, unpack_failure
from gpulease.pool.feed import Feed, Wanted
from gpulease.pool.items import PATIENCE, Item, ItemStart, learn, most_tries, share
from gpulease.pool.link import ERROR, STARTED, Link
from gpulease.pool.log import Log
from gpulease.pool.reactor import Reactor

OnStart = Callable[[ItemStart], object]
TICK = 0.005  # seconds between looks at workers that have items ahead


class Source:
    """Where workers come from, and what ends them."""

    def expecting(self) -> bool:
        """Whether a worker is on its way, as far as is known."""
        return False

    def starting(self) -> int:
        """How many workers will be ready soon, as far as is known: they do not wait in the queue."""
        return 0

    def grow(self, gpus: int, request: Mapping[str, Any]) -> None:
        """Workers for this many more GPUs, from any thread; `request` is for their leases alone."""
        raise UsageError("This pool cannot grow.", "Ray's pools have the workers that they were made with.")

    def stop(self) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """Without waiting for what runs."""
        self.stop()


class Engine:
    source: Source  # set before anything comes in

    def __init__(self, reactor: Reactor, log: Log, retries: int, on_start: OnStart | None = None) -> None:
        self.reactor, self.log = reactor, log
        self.links: list[Link] = []
        self.queue: deque[Item] = deque()
        self.on_waiting: Callable[[], None] | None = None  # in the reactor's thread: items wait for a worker
        self._lock = threading.RLock()
        self._on_start = on_start
        self._most_tries = most_tries(retries)
        self._alone: deque[Item] = deque()  # on their last try, for a worker that has done nothing yet
        self._feeds: set[Feed] = set()  # maps whose input is still read
        self._numbers = count(1)
        self._closing = False
        self._cancelling = False  # closing, and what no worker is there for is dropped
        self._stopped = False  # the source was told to end
        self._trouble: GpuleaseError | None = None
        self._ticking = False

    # ---------------------------------------------------------------- from any thread

    def submit(self, items: Sequence[Item], feed: Feed | None = None) -> None:
        with self._lock:
            self.check_open(feed)
            for item in items:
                item.number = next(self._numbers)
            self.queue.extend(items)
            self._dispatch()
            waiting = self.on_waiting if self.queue else None
        if waiting is not None:
            self.reactor.call(waiting)

    def check_open(self, feed: Feed | None = None) -> None:
        """Raises what submit() would raise. A map that was there before the end is still read to its own."""
        if self._trouble is not None:
            raise type(self._trouble)(self._trouble.what, self._trouble.next_step) from self._trouble.__cause__
        if self._closing and feed not in self._feeds:
            raise PoolClosed("The pool was shut down and takes no more items.")

    def add(self, feed: Feed) -> None:
        """A map, whose input the pool waits for when it is closed."""
        with self._lock:
            self._feeds.add(feed)
        feed.start(self._fed)

    def _fed(self, feed: Feed) -> None:
        with self._lock:
            self._feeds.discard(feed)
        self.reactor.call(self.check_finished)

    def close(self, cancel: bool = False, only_unstarted: bool = False) -> None:
        """No more items; the workers end when the last one is done. `cancel`: what nobody has begun is cancelled.

        All input of maps still goes in; with `only_unstarted`, only where nobody has taken a result.
        """
        with self._lock:
            self._closing = True
            self._cancelling = self._cancelling or cancel
            stopped = {feed for feed in self._feeds if cancel or (only_unstarted and feed.wanted is Wanted.NOW)}
            self._feeds -= stopped  # nobody waits for an input that may never come
            rest = list(self._feeds)
        for feed in stopped:
            feed.stop(CancelledError() if cancel else _not_read())
        for feed in rest:
            feed.run_all()
        self.reactor.call(self.check_finished)

    def terminate(self) -> None:
        """End the workers now. What is not done fails."""
        with self._lock:
            self._closing = True
            self._trouble = self._trouble or PoolClosed("The pool was ended while items were under way.")
            feeds, self._feeds = self._feeds, set()
        for feed in feeds:
            feed.stop(_not_read())
        self.reactor.call(self._end_now)

    def join(self) -> None:
        for feed in list(self._feeds):
            feed.join()
        self.reactor.join()

    def ended(self) -> bool:
        return not self.reactor.thread.is_alive()

    def gpus(self) -> list[str]:
        """The devices of the workers that are ready."""
        return [link.gpus for link in self.links]

    def pending(self) -> int:
        """Items that nobody is at work on."""
        return len(self.queue) + len(self._alone)

    def forget(self, key: int) -> None:
        """No item of that function is left: workers need not keep it."""
        self.reactor.call(lambda: self._forget(key))

    # ---------------------------------------------------------------- giving (under the lock)

    def _dispatch(self) -> None:
        while self._alone and (link := self._for_a_last_try()) is not None:
            self._give(link, [self._alone.popleft()])
        if self.queue:
            for link in sorted(self.links, key=lambda link: len(link.in_flight)):
                if self.queue:
                    self._fill(link)

    def _fill(self, link: Link) -> None:
        most = min(link.room(self.queue[0]), share(len(self.queue), len(self.links)))
        if most > 0:
            queue, function = self.queue, self.queue[0].function
            items: list[Item] = []
            while len(items) < most and queue and queue[0].function is function:
                item = queue.popleft()
                if item.begin():  # else nobody wants it any more
                    items.append(item)
            if items:
                self._give(link, items)

    def _give(self, link: Link, items: list[Item]) -> None:
        link.give(items)
        if self._on_start is not None and not link.tells_starts:
            for item in items:
                self.reactor.call(partial(self._tell_start, link, item))
        if not self._ticking and _watched(link):
            self._ticking = True
            self.reactor.call(self._tick)

    def _for_a_last_try(self) -> Link | None:
        idle = [link for link in self.links if not link.in_flight and link.room(self._alone[0])]
        fresh = [link for link in idle if not link.done]
        if fresh:
            return fresh[0]
        return idle[0] if idle and not self.source.expecting() else None

    def _tick(self) -> None:
        """Take back what stands behind an item that takes longer than was thought."""
        with self._lock:
            self._ticking = False
            late = time.monotonic() - PATIENCE
            idle = not self.queue and any(not link.in_flight for link in self.links)
            for link in self.links:
                if _watched(link) and link.heard < late:
                    self._take_back(link, keep=1 if link.exclusive or not idle else 0)
                    link.settled = True  # what is left is begun
            self._dispatch()
            if not self._ticking and any(map(_watched, self.links)):
                self._ticking = True
                self.reactor.later(TICK, self._tick)

    def _take_back(self, link: Link, keep: int = 0) -> None:
        self.queue.extendleft(reversed(link.take_back(len(link.in_flight) - keep)))

    # ---------------------------------------------------------------- hearing (in the reactor's thread)

    def _received(self, link: Link, received: Sequence[Any]) -> None:
        if link.tells_starts:
            received = self._announce(link, received)
        done = self._finished_items(link, received)
        while done:
            _complete(link, *done.popleft())  # nothing here keeps a result that somebody has taken
        self.check_finished()

    def _announce(self, link: Link, received: Sequence[Any]) -> list[Any]:
        """What is left once the starts were reported."""
        numbers = [message.number for message in received if message.kind == STARTED]
        with self._lock:
            items = {item.number: item for item in link.in_flight} if numbers else {}
        for number in numbers:
            self._tell_start(link, items[number])
        return [message for message in received if message.kind != STARTED]

    def _tell_start(self, link: Link, item: Item) -> None:
        assert self._on_start is not None
        try:
            self._on_start(ItemStart(item, link.place))
        except Exception:  # the user's own; the item runs all the same
            logging.getLogger("gpulease.pool").exception("on_start failed")

    def _finished_items(self, link: Link, received: Sequence[Any]) -> deque[tuple[Item, Any]]:
        done: deque[tuple[Item, Any]] = deque()
        with self._lock:
            link.flush()
            for message in received:
                item = link.finished(message)
                if item is not None:
                    item.function.seconds = learn(item.function.seconds, message.seconds)
                    done.append((item, message))
            link.heard = time.monotonic()
            self._dispatch()
        return done

    # ---------------------------------------------------------------- workers that come and go

    def joined(self, link: Link) -> None:
        link.hear = partial(self._received, link)
        link.tells_starts = self._on_start is not None and link.can_tell_starts
        link.begin()
        with self._lock:
            self.links.append(link)
            self._dispatch()
        self.check_finished()

    def left(self, link: Link, ending: Ending) -> None:
        """The worker is gone; results that it sent before count."""
        self._received(link, link.rest())
        with self._lock:
            self.links.remove(link)
            begun, unstarted = link.lost()
            if self._trouble is None:
                self.queue.extendleft(reversed(unstarted))
                unstarted = []
            failed = [item for item in begun if not self._again(item, ending)] + unstarted  # for whom nobody comes
            self._dispatch()
        link.close()
        for item in failed:
            item.fail(self._trouble or died(ending, item.deaths, item.function.name))
        self.check_finished()

    def _again(self, item: Item, ending: Ending) -> bool:
        item.deaths += 1
        if self._trouble is not None or item.deaths >= self._most_tries:
            return False
        self.log.note(f"an item of {item.function.name} goes to another worker: its worker {ending}")
        last = item.deaths > 1 and item.deaths == self._most_tries - 1
        item.future.place = None
        (self._alone if last else self.queue).appendleft(item)
        return True

    def retire(self, name: str) -> None:
        """The worker gets nothing new; it will end after what it has begun."""
        with self._lock:
            for link in self.links:
                if link.name == name:
                    link.retiring = True
                    self._take_back(link)
            self._dispatch()

    def broken(self, error: GpuleaseError) -> None:
        """No worker will come any more."""
        with self._lock:
            self._trouble = self._trouble or error
            self._closing = True
        self._fail_waiting(error)
        self.check_finished()

    def check_finished(self) -> None:
        """After anything that may have been the last thing to wait for."""
        if not self._closing:
            return
        with self._lock:
            # One item for each worker that will be ready soon counts as begun.
            spare = len(self.queue) - self.source.starting() if self._cancelling else 0
            dropped = [self.queue.pop() for _ in range(spare)]
            self._dispatch()  # drops what nobody wants any more
            busy = self._feeds or self.pending() or any(link.in_flight for link in self.links)
        for item in dropped:
            item.cancel()
        if not busy and not self._stopped:
            self._stopped = True
            self.source.stop()

    def _fail_waiting(self, error: GpuleaseError) -> None:
        with self._lock:
            dropped = [*self._alone, *self.queue]
            self._alone.clear()
            self.queue.clear()
        for item in dropped:
            item.fail(error)

    def _end_now(self) -> None:
        self._fail_waiting(self._trouble or PoolClosed("The pool was ended."))
        self._stopped = True
        self.source.kill()

    def _forget(self, key: int) -> None:
        with self._lock:
            for link in self.links:
                link.forget(key)


def _not_read() -> PoolClosed:
    return PoolClosed("The pool was shut down before all of the input was read.")


def _complete(link: Link, item: Item, message: Any) -> None:
    try:
        value: Any = link.value(message)
        if message.kind == ERROR:
            value = unpack_failure(value, f"{link.name} (GPU {link.gpus})")
    except BaseException as trouble:  # what a result does when it is unpickled is the user's affair
        item.fail(
            TaskFailed(
                f"The result of {item.function.name} cannot be read here: {type(trouble).__name__}: {trouble}.",
                "Return what this program can import.",
            )
        )
        return
    if message.kind == ERROR:
        item.fail(value)
    else:
        item.succeed(value)


def _watched(link: Link) -> bool:
    """Whether it may have items that it has not begun."""
    return len(link.in_flight) > link.exclusive and not link.settled
