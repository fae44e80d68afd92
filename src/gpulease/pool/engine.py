"""Gives items to workers: the queue, who gets how much, what is taken back, and what becomes of a dead worker's items.

State is guarded by one lock, so that a call goes out from the caller's own thread when a worker is idle; results are
read in the reactor's thread.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from gpulease.errors import GpuleaseError, PoolClosed, TaskFailed
from gpulease.pool import frames, windows
from gpulease.pool.failures import Ending, died, unpack_failure
from gpulease.pool.frames import Frame
from gpulease.pool.items import Item
from gpulease.pool.link import Link
from gpulease.pool.log import Log
from gpulease.pool.pickling import from_body
from gpulease.pool.reactor import Reactor

MOMENT = 0.001  # seconds that items wait for those that follow them
TICK = 0.005  # seconds between looks at workers that have items ahead


class Source(Protocol):
    """Where workers come from: a crew of this process, or a named pool."""

    def expecting(self) -> bool: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class Engine:
    def __init__(self, reactor: Reactor, log: Log, retries: int) -> None:
        self.reactor, self.log = reactor, log
        self.links: list[Link] = []
        self.source: Source | None = None
        self.queue: deque[Item] = deque()
        self._lock = threading.RLock()
        self._most_tries = windows.most_tries(retries)
        self._alone: deque[Item] = deque()  # on their last try, for a worker that has done nothing yet
        self._numbers = count(1)
        self._closing = False
        self._trouble: GpuleaseError | None = None
        self._ticking = False
        self._dispatching_soon = False
        self._submitted = 0.0  # when the last of items came that are followed by others
        self.on_waiting: Callable[[], None] | None = None  # in the reactor's thread: items wait for a worker

    # ---------------------------------------------------------------- from any thread

    def submit(self, items: Sequence[Item], more: bool = False) -> None:
        """`more`: others follow, maybe at once. Then they go out together, if that takes no longer than a moment."""
        with self._lock:
            self._check_open()
            for item in items:
                item.number = next(self._numbers)
            # Only to the idle: whoever is at work looks into the queue with its next result, and takes more at once.
            idle = not self.queue
            self.queue.extend(items)
            if idle and (not more or self._moment_passed()):
                self._dispatch(only_idle=True)
            elif idle and not self._dispatching_soon:
                self._dispatching_soon = True
                self.reactor.call(lambda: self.reactor.later(MOMENT, self._dispatch_at_last))
            waiting = self.on_waiting if self.queue else None
        if waiting is not None:
            self.reactor.call(waiting)

    def _moment_passed(self) -> bool:
        before, self._submitted = self._submitted, time.monotonic()
        return self._submitted - before > MOMENT

    def _dispatch_at_last(self) -> None:
        with self._lock:
            self._dispatching_soon = False
            self._dispatch(only_idle=True)

    def close(self, cancel: bool = False) -> None:
        """No more items; the workers end when the last one is done."""
        with self._lock:
            self._closing = True
            dropped = self._drop_waiting() if cancel else []
        for item in dropped:
            item.cancel()
        self.reactor.call(self._check_finished)

    def terminate(self) -> None:
        """End the workers now. What is not done fails."""
        with self._lock:
            self._closing = True
            self._trouble = self._trouble or PoolClosed("The pool was ended while items were under way.")
        self.reactor.call(self._end_now)

    def pending(self) -> int:
        """Items that nobody is at work on."""
        return len(self.queue) + len(self._alone)

    def _check_open(self) -> None:
        if self._trouble is not None:
            raise type(self._trouble)(self._trouble.what, self._trouble.next_step) from self._trouble.__cause__
        if self._closing:
            raise PoolClosed("The pool was shut down and takes no more items.")

    def _drop_waiting(self) -> list[Item]:
        dropped = [*self._alone, *self.queue]
        self.queue.clear()
        self._alone.clear()
        return dropped

    # ---------------------------------------------------------------- giving (under the lock)

    def _dispatch(self, only_idle: bool = False) -> None:
        while self._alone and (link := self._for_a_last_try()) is not None:
            self._give(link, [self._alone.popleft()])
        if self.queue:
            for link in sorted(self.links, key=_in_flight):
                if not self.queue or (only_idle and link.in_flight):
                    break
                self._fill(link)
        elif len(self.links) > 1:
            self._share_out()

    def _fill(self, link: Link) -> None:
        most = min(link.room(self.queue[0]), windows.share(len(self.queue), len(self.links)))
        if most > 0:
            queue, function = self.queue, self.queue[0].function
            items: list[Item] = []
            while len(items) < most and queue and queue[0].function is function:
                item = queue.popleft()
                if item.begin():  # else nobody wants it any more
                    items.append(item)
            self._give(link, items)

    def _give(self, link: Link, items: list[Item]) -> None:
        if not items:
            return
        link.give(items)
        if link.blocked:
            self.reactor.call(lambda: self._watch_writing(link))
        if not self._ticking and _watched(link):
            self._ticking = True
            self.reactor.call(self._tick)

    def _for_a_last_try(self) -> Link | None:
        idle = [link for link in self.links if not link.in_flight and link.room(self._alone[0])]
        fresh = [link for link in idle if not link.done]
        if fresh:
            return fresh[0]
        expecting = self.source is not None and self.source.expecting()
        return idle[0] if idle and not expecting else None

    def _share_out(self) -> None:
        """An idle worker takes half of what the most loaded one has ahead."""
        idle = [link for link in self.links if not link.in_flight and not link.taken_back and not link.retiring]
        for link in idle:
            loaded = max(self.links, key=_ahead)
            if _ahead(loaded) < windows.STALLED_AND_IDLE:
                return
            items = loaded.take_back(len(loaded.in_flight) // 2)
            if items:
                self._give(link, items)

    def _tick(self) -> None:
        """Take back what stands behind an item that takes longer than was thought."""
        with self._lock:
            self._ticking = False
            now = time.monotonic()
            idle = not self.queue and any(not link.in_flight for link in self.links)
            patience = windows.STALLED_AND_IDLE if idle else windows.STALLED
            for link in self.links:
                if _watched(link) and now - link.heard > patience and (idle or len(link.in_flight) > 1):
                    self.queue.extendleft(reversed(link.take_back(windows.DEEPEST)))
                    link.settled = True  # what is left is begun
            self._dispatch()
            if not self._ticking and any(map(_watched, self.links)):
                self._ticking = True
                self.reactor.later(TICK, self._tick)

    # ---------------------------------------------------------------- hearing (in the reactor's thread)

    def _readable(self, link: Link) -> None:
        if link.blocked:
            with self._lock:
                if link.flush():
                    self.reactor.change(link.socket.fileno(), select.EPOLLIN)
        try:
            received = link.receive()
        except BlockingIOError:
            return
        except EOFError:
            self.reactor.unwatch(link.socket.fileno())  # the process's end tells the rest
            return
        self._received(link, received)

    def _received(self, link: Link, received: list[Frame]) -> None:
        done: list[tuple[Item, Frame]] = []
        with self._lock:
            for frame in received:
                item = link.finished(frame)
                if item is not None:
                    item.function.seconds = windows.learn(item.function.seconds, frame.seconds)
                    done.append((item, frame))
            link.heard = time.monotonic()
            self._dispatch()
        for item, frame in done:
            _complete(link, item, frame)
        self._check_finished()

    def _watch_writing(self, link: Link) -> None:
        if link in self.links and link.blocked:
            self.reactor.change(link.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    # ---------------------------------------------------------------- workers that come and go

    def joined(self, link: Link) -> None:
        self.reactor.watch(link.socket.fileno(), lambda: self._readable(link))
        with self._lock:
            self.links.append(link)
            self._dispatch()
        self._check_finished()

    def left(self, link: Link, ending: Ending) -> bool:
        """The worker is gone. Whether it had been of use."""
        self._read_the_rest(link)
        self.reactor.unwatch(link.socket.fileno())
        with self._lock:
            self.links.remove(link)
            begun, unbegun = link.lost()
            self.queue.extendleft(reversed(unbegun))
            failed = [item for item in begun if not self._again(item, ending)]
            self._dispatch()
        link.close()
        for item in failed:
            item.fail(self._trouble or died(ending, item.deaths, item.function.name))
        self._check_finished()
        return bool(link.done or begun)

    def _read_the_rest(self, link: Link) -> None:
        """Results that it sent before it ended count, and so do those that it was about to send."""
        try:
            while True:
                self._received(link, link.receive())
        except (EOFError, BlockingIOError):
            pass
        self._received(link, link.unsent())

    def _again(self, item: Item, ending: Ending) -> bool:
        item.deaths += 1
        if self._trouble is not None or item.deaths >= self._most_tries:
            return False
        self.log.note(f"an item of {item.function.name} goes to another worker: its worker {ending}")
        last = item.deaths > 1 and item.deaths == self._most_tries - 1
        (self._alone if last else self.queue).appendleft(item)
        return True

    def retire(self, name: str) -> None:
        """The worker gets nothing new; it will end after what it has begun."""
        with self._lock:
            for link in self.links:
                if link.name == name:
                    link.retiring = True
                    self.queue.extendleft(reversed(link.take_back(windows.DEEPEST)))
            self._dispatch()

    def broken(self, error: GpuleaseError) -> None:
        """No worker will come any more."""
        with self._lock:
            self._trouble = self._trouble or error
            dropped = self._drop_waiting()
        for item in dropped:
            item.fail(error)
        self._closing = True
        self._check_finished()

    def _check_finished(self) -> None:
        if not self._closing:
            return
        with self._lock:
            self._dispatch()  # drops what nobody wants any more
            busy = self.queue or self._alone or any(link.in_flight for link in self.links)
            finished = not busy and self.source is not None
        if finished and self.source is not None:
            source, self.source = self.source, None
            source.stop()

    def _end_now(self) -> None:
        with self._lock:
            dropped = self._drop_waiting()
        for item in dropped:
            item.fail(self._trouble or PoolClosed("The pool was ended."))
        source, self.source = self.source, None
        if source is not None:
            source.kill()


def _complete(link: Link, item: Item, frame: Frame) -> None:
    try:
        value = from_body(frame.body, frame.descriptors)
        if frame.kind == frames.RESULT:
            return item.succeed(value)
        error = unpack_failure(value, f"{link.name} (GPU {link.gpus})")
    except Exception as trouble:
        error = TaskFailed(
            f"The result of {item.function.name} cannot be read here: {type(trouble).__name__}: {trouble}.",
            "Return what this program can import.",
        )
    item.fail(error)


def _in_flight(link: Link) -> int:
    return len(link.in_flight)


def _ahead(link: Link) -> float:
    """Seconds of work that it has and has not begun, by what is known."""
    if len(link.in_flight) < 2:
        return 0.0
    return (len(link.in_flight) - 1) * (link.in_flight[-1].function.seconds or 0.0)


def _watched(link: Link) -> bool:
    """Whether it may have items that it has not begun."""
    return len(link.in_flight) > link.exclusive and not link.settled
