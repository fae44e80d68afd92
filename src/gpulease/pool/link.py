"""The pool's end of its connection with one ready worker.

Tokens, in an eventfd that both processes hold, say how many of the items in the worker's socket nobody has begun. The
worker takes one before each item; the pool takes them to get items back. The kernel decides who was first, and the
worker need not answer, so that a worker deep in a long call can be taken from.
"""

from __future__ import annotations

import os
import socket
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gpulease.errors import CannotPickle
from gpulease.pool import frames
from gpulease.pool.frames import BY_DESCRIPTOR, Frame, Receiver
from gpulease.pool.items import Item, place_of
from gpulease.pool.pickling import from_body, to_body
from gpulease.pool.reactor import Reactor
from gpulease.pool.window import Window


class Link:
    """What the engine knows of a worker, however it is reached.

    What a worker tells of an item has `kind`, `number` and `seconds`, as a Frame has.
    """

    can_tell_starts = False
    hear: Callable[[Sequence[Any]], None]  # in the reactor's thread: what the worker tells; set before `begin`

    def __init__(self, name: str, gpus: str, window: Window) -> None:
        self.name = name
        self.gpus = gpus  # labels, as 0,3
        self.place = place_of(name, gpus)
        self.in_flight: deque[Item] = deque()
        self.window = window
        self.heard = 0.0  # when it last sent a result, or began to have work
        self.done = 0
        self.exclusive = True  # else it serves other programs too, and may not have begun the first item
        self.retiring = False
        self.settled = True  # whether nothing is left to take back from it
        self.tells_starts = False  # whether it tells of each item that it begins

    def room(self, item: Item) -> int:
        """How many items like this one it may be given now."""
        return 0 if self.retiring else self.window.room(item.function.seconds)

    def give(self, items: Sequence[Item]) -> None:
        if not self.in_flight:
            self.heard = time.monotonic()
        sent = self.send(items)
        for item in sent:
            item.future.place = self.place
        self.in_flight.extend(sent)
        self.window = self.window.given(len(sent))
        self.settled = False

    def take_back(self, most: int) -> list[Item]:
        """Up to `most` of the items that it has not begun, those that were given last."""
        taken = self.take_tokens(most)
        self.window = self.window.taken_back(taken)
        items = [self.in_flight.pop() for _ in range(taken)]
        items.reverse()
        for item in items:
            item.future.place = None
        return items

    def finished(self, told: Any) -> Item | None:
        """The item that was told of; None for one that was skipped."""
        if told.kind == frames.SKIPPED:
            self.window = self.window.skipped()
            return None
        item = self.in_flight.popleft()
        assert item.number == told.number, (item.number, told.number)
        self.window = self.window.finished()
        self.done += 1
        return item

    def lost(self) -> tuple[list[Item], list[Item]]:
        """Once the worker is gone: (the item that it had begun, if any; those that it had not)."""
        unbegun = self.take_back(len(self.in_flight))
        return list(self.in_flight), unbegun

    # ---------------------------------------------------------------- how it is reached

    def begin(self) -> None:
        """From now on `hear` is called."""

    def send(self, items: Sequence[Item]) -> list[Item]:
        """Those that are on their way; the others have failed."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what could not be sent before."""

    def take_tokens(self, most: int) -> int:
        """How many of up to `most` items it will not begin any more."""
        return 0

    def forget(self, key: int) -> None:
        """No item of that function is left."""
        raise NotImplementedError

    def value(self, told: Any) -> Any:
        """What was told, unpickled."""
        raise NotImplementedError

    def rest(self) -> list[Frame]:
        """Once the worker is gone: what it sent and nobody has read."""
        return []

    def close(self) -> None: ...


class SocketLink(Link):
    can_tell_starts = True

    def __init__(self, name: str, gpus: str, connected: socket.socket, tokens: int, reactor: Reactor) -> None:
        super().__init__(name, gpus, Window())
        self.socket = connected
        self._tokens = tokens
        self._reactor = reactor
        self._receiver = Receiver(connected)
        self._known: set[int] = set()
        self._outgoing: deque[tuple[bytes, int | None]] = deque()
        connected.setblocking(False)

    def room(self, item: Item) -> int:
        return 0 if self._outgoing else super().room(item)

    # ---------------------------------------------------------------- sending (under the engine's lock)

    def send(self, items: Sequence[Item]) -> list[Item]:
        """Tokens first: the worker takes an item without one for an item that was taken back."""
        bodies = [(item, *made) for item in items if (made := _body(item)) is not None]
        if bodies:
            os.eventfd_write(self._tokens, len(bodies))
        parts: list[bytes] = []
        tells = float(self.tells_starts)
        for item, body, descriptor in bodies:
            function = item.function
            if function.key not in self._known:
                self._known.add(function.key)
                parts.append(frames.pack(frames.FUNCTION, function.payload, function.key))
            parts.append(
                frames.HEAD.pack(len(body), frames.WORK, descriptor is not None, function.key, item.number, tells)
            )
            parts.append(body)
            if descriptor is not None:
                # Descriptors arrive with the first byte of their send: what came before goes before.
                self._post(b"".join(parts), descriptor)
                parts = []
        if parts:
            self._post(b"".join(parts), None)
        return [item for item, _, _ in bodies]

    def share(self, body: bytes, memory: int | None) -> None:
        """What this program's items see as shared from now on."""
        descriptor = None if memory is None else os.dup(memory)
        self._post(frames.pack(frames.SHARED, body, descriptors=descriptor is not None), descriptor)

    def forget(self, key: int) -> None:
        if key in self._known:
            self._known.remove(key)
            self._post(frames.pack(frames.FORGET, key=key), None)

    def _post(self, data: bytes, descriptor: int | None) -> None:
        self._outgoing.append((data, descriptor))
        if not self._flush():
            self._reactor.call(self._watch_writing)

    def _flush(self) -> bool:
        """Send what can be sent now; whether nothing is left."""
        while self._outgoing:
            data, descriptor = self._outgoing.popleft()
            try:
                passed = [] if descriptor is None else [(*BY_DESCRIPTOR, array("i", [descriptor]))]
                sent = self.socket.sendmsg([data], passed)
            except BlockingIOError:
                self._outgoing.appendleft((data, descriptor))
                return False
            except OSError:
                sent = len(data)  # it ended; its end is noticed by itself
            if descriptor is not None:
                os.close(descriptor)
            if sent < len(data):
                self._outgoing.appendleft((data[sent:], None))
        return True

    def take_tokens(self, most: int) -> int:
        taken = 0
        try:
            while taken < most:
                os.eventfd_read(self._tokens)
                taken += 1
        except BlockingIOError:
            pass
        return taken

    # ---------------------------------------------------------------- receiving (in the reactor's thread)

    def begin(self) -> None:
        self._reactor.watch(self.socket.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            self.hear(self._receiver.receive())
        except BlockingIOError:
            pass
        except EOFError:
            self._reactor.unwatch(self.socket.fileno())  # the process's end tells the rest

    def flush(self) -> None:
        if self._outgoing and self._flush():
            self._reactor.unwatch_writing(self.socket.fileno())

    def _watch_writing(self) -> None:
        if self._outgoing:
            self._reactor.watch_writing(self.socket.fileno(), lambda: self.hear([]))

    def value(self, told: Frame) -> Any:
        return from_body(told.body, told.descriptors)

    def rest(self) -> list[Frame]:
        self._reactor.unwatch(self.socket.fileno())
        rest: list[Frame] = []
        try:
            while True:
                rest += self._receiver.receive()
        except (EOFError, BlockingIOError):
            return rest

    def close(self) -> None:
        for _, descriptor in self._outgoing:
            if descriptor is not None:
                os.close(descriptor)
        self._outgoing.clear()
        self._receiver.close()
        self.socket.close()
        os.close(self._tokens)


def _body(item: Item) -> tuple[bytes, int | None] | None:
    """What goes to the worker; None when there is no room for it in memory, and the item has failed."""
    try:
        return to_body(item.packed)
    except OSError as error:
        text = f"The arguments of {item.function.name} have no room in shared memory: {error.strerror}."
        item.fail(CannotPickle(text, "Free some memory, or send less at once."))
        return None
