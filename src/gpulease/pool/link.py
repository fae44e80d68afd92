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

from gpulease.errors import CannotPickle
from gpulease.pool import frames
from gpulease.pool.frames import BY_DESCRIPTOR, Frame, Receiver
from gpulease.pool.items import Item
from gpulease.pool.outbox import left_in
from gpulease.pool.pickling import to_body
from gpulease.pool.windows import DEEPEST, MOST_BYTES, depth, room

MOST_FUNCTIONS = 1000  # that a worker keeps


class Link:
    def __init__(
        self, name: str, gpus: str, connected: socket.socket, tokens: int, page: int, exclusive: bool = True
    ) -> None:
        self.name = name
        self.gpus = gpus  # labels, as 0,3
        self.socket = connected
        self.exclusive = exclusive  # else the worker serves other programs too, and may not have begun the first item
        self.in_flight: deque[Item] = deque()
        self.taken_back: set[int] = set()  # that the worker will skip; until then it gets nothing new
        self.heard = 0.0  # when it last sent a result, or began to have work
        self.done = 0
        self.retiring = False
        self.settled = False  # whether nothing is left to take back from it
        self._tokens, self._page = tokens, page
        self._receiver = Receiver(connected)
        self._known: set[int] = set()
        self._bytes = 0  # of the items in flight
        self._outgoing: deque[tuple[bytes, int | None]] = deque()
        connected.setblocking(False)

    # ---------------------------------------------------------------- giving

    def room(self, item: Item) -> int:
        """How many items like this one it may be given now."""
        if self.taken_back or self.retiring or self._outgoing or self._bytes >= MOST_BYTES:
            return 0
        return room(len(self.in_flight), depth(item.function.seconds))

    def give(self, items: list[Item]) -> None:
        """Tokens first: the worker takes an item without one for an item that was taken back."""
        bodies = [(item, *made) for item in items if (made := _body(item)) is not None]
        if not bodies:
            return
        os.eventfd_write(self._tokens, len(bodies))
        if not self.in_flight:
            self.heard = time.monotonic()
        self.in_flight.extend(item for item, _, _ in bodies)
        self.settled = False
        parts: list[bytes] = []
        for item, body, descriptor in bodies:
            self._add(item, body, descriptor, parts)
        if parts:
            self._send(b"".join(parts), None)

    def _add(self, item: Item, body: bytes, descriptor: int | None, parts: list[bytes]) -> None:
        function = item.function
        if function.key not in self._known:
            if len(self._known) >= MOST_FUNCTIONS:
                self._known.clear()
                parts.append(frames.pack(frames.FORGET))
            self._known.add(function.key)
            parts.append(frames.pack(frames.FUNCTION, function.payload, function.key))
        self._bytes += len(body)
        head = frames.HEAD.pack(len(body), frames.WORK, descriptor is not None, function.key, item.number, 0.0)
        parts.append(head)
        parts.append(body)
        if descriptor is not None:
            # Descriptors arrive with the first byte of their send: what came before goes before.
            data = b"".join(parts)
            parts.clear()
            self._send(data, descriptor)

    def _send(self, data: bytes, descriptor: int | None) -> None:
        self._outgoing.append((data, descriptor))
        self.flush()

    def flush(self) -> bool:
        """Send what can be sent now; whether nothing is left."""
        while self._outgoing:
            data, descriptor = self._outgoing.popleft()
            try:
                sent = self._send_some(data, descriptor)
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

    def _send_some(self, data: bytes, descriptor: int | None) -> int:
        if descriptor is None:
            return self.socket.send(data)
        return self.socket.sendmsg([data], [(*BY_DESCRIPTOR, array("i", [descriptor]))])

    @property
    def blocked(self) -> bool:
        return bool(self._outgoing)

    # ---------------------------------------------------------------- taking back

    def take_back(self, most: int) -> list[Item]:
        """Up to `most` of the items that it has not begun, the last ones first given away."""
        taken = 0
        try:
            while taken < most:
                os.eventfd_read(self._tokens)
                taken += 1
        except BlockingIOError:
            pass
        items = [self.in_flight.pop() for _ in range(taken)]
        self.taken_back.update(item.number for item in items)
        items.reverse()
        return items

    # ---------------------------------------------------------------- hearing

    def receive(self) -> list[Frame]:
        """What it sent. Raises EOFError once it has ended and all was read."""
        return self._receiver.receive()

    def finished(self, frame: Frame) -> Item | None:
        """The item that a frame is about; None for one that was skipped."""
        if frame.kind == frames.SKIPPED:
            self.taken_back.discard(frame.number)
            return None
        item = self.in_flight.popleft()
        assert item.number == frame.number, (item.number, frame.number)
        self._bytes = max(0, self._bytes - len(item.packed.payload)) if self.in_flight else 0
        self.done += 1
        return item

    def unsent(self) -> list[Frame]:
        """Once the worker is gone and all that it sent was read: what it had done and not sent."""
        numbers = {item.number for item in self.in_flight}
        return [frame for frame in frames.whole_frames(left_in(self._page)) if frame.number in numbers]

    def lost(self) -> tuple[list[Item], list[Item]]:
        """Once the worker is gone: (the item that it had begun, if any; those that it had not)."""
        unbegun = self.take_back(DEEPEST * 2)
        return list(self.in_flight), unbegun

    def close(self) -> None:
        for _, descriptor in self._outgoing:
            if descriptor is not None:
                os.close(descriptor)
        self._outgoing.clear()
        self._receiver.close()
        self.socket.close()
        os.close(self._tokens)
        os.close(self._page)


def _body(item: Item) -> tuple[bytes, int | None] | None:
    """What goes to the worker; None when there is no room for it in memory, and the item has failed."""
    try:
        return to_body(item.packed)
    except OSError as error:
        text = f"The arguments of {item.function.name} have no room in shared memory: {error.strerror}."
        item.fail(CannotPickle(text, "Free some memory, or send less at once."))
        return None
