"""The pool's end of its connection with one ready worker, and the frames that go over it.

Tokens, in an eventfd that both processes hold, say how many of the items in the worker's socket nobody has begun. The
worker takes one before each item; the pool takes them to get items back. The kernel decides who was first, and the
worker need not answer, so that a worker deep in a long call can be taken from.

Not for: what a body means. Several frames are sent in one system call, and read in one.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gpulease.errors import CannotPickle
from gpulease.pool.items import Item, Window, place_of
from gpulease.pool.pickling import from_body, to_body
from gpulease.pool.reactor import Reactor

# length of the body, kind, descriptors, key of the function, number of the item, seconds that it ran
HEAD = struct.Struct("<IBBIQd")

FUNCTION = 1  # to a worker: a function, under a key
WORK = 2  # to a worker: the arguments of one item; `seconds` is not 0 where its start is to be told
FORGET = 3  # to a worker: drop the function of that key
RESULT = 4  # from a worker: what the item returned
ERROR = 5  # from a worker: what the item raised
SKIPPED = 6  # from a worker: the item was taken back before it began
CONTROL = 7  # between a worker and its parent, or a program and a named pool: a dictionary
STARTED = 8  # from a worker: it has begun the item
SHARED = 9  # to a worker: what this program shares with it, beside what the pool does

READ = 1 << 18
ANCILLARY = socket.CMSG_SPACE(253 * 4)  # SCM_MAX_FD descriptors
BY_DESCRIPTOR = (socket.SOL_SOCKET, socket.SCM_RIGHTS)


class Frame(NamedTuple):
    kind: int
    key: int
    number: int
    seconds: float
    body: bytes
    descriptors: tuple[int, ...]


def pack(
    kind: int, body: bytes = b"", key: int = 0, number: int = 0, seconds: float = 0.0, descriptors: int = 0
) -> bytes:
    return HEAD.pack(len(body), kind, descriptors, key, number, seconds) + body


def pack_json(result: dict[str, Any], descriptors: int = 0) -> bytes:
    """For what comes from another program: nobody unpickles it."""
    return pack(CONTROL, json.dumps(result).encode(), descriptors=descriptors)


def send_all(connected: socket.socket, data: bytes, descriptors: Sequence[int] = ()) -> None:
    """On a blocking socket. The descriptors travel with the first byte."""
    if descriptors:
        sent = connected.sendmsg([data], [(*BY_DESCRIPTOR, array("i", descriptors))])
        data = data[sent:]
    connected.sendall(data)


class Receiver:
    """Bytes and descriptors as they come in, whole frames as they are complete."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._block = memoryview(bytearray(READ))
        self._rest = b""
        self._descriptors: deque[int] = deque()

    def receive(self) -> list[Frame]:
        """The frames of one read. Raises EOFError at the end, BlockingIOError when there is nothing now."""
        try:
            count, ancillary, _, _ = self._socket.recvmsg_into([self._block], ANCILLARY, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            raise EOFError from None
        if not count:
            raise EOFError
        for level, kind, data in ancillary:
            if (level, kind) == BY_DESCRIPTOR:
                self._descriptors.extend(array("i", data[: len(data) - len(data) % 4]))
        data = self._rest + self._block[:count].tobytes()
        whole, end = _split(data, self._descriptors)
        self._rest = data[end:]
        return whole

    def close(self) -> None:
        """Descriptors whose frame never came whole."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def _split(data: bytes, waiting: deque[int]) -> tuple[list[Frame], int]:
    """(the whole frames, where they end)."""
    frames, place, size = [], 0, len(data)
    while size - place >= HEAD.size:
        length, kind, descriptors, key, number, seconds = HEAD.unpack_from(data, place)
        end = place + HEAD.size + length
        if end > size:
            break
        taken = tuple(waiting.popleft() for _ in range(descriptors)) if descriptors else ()
        frames.append(Frame(kind, key, number, seconds, data[place + HEAD.size : end], taken))
        place = end
    return frames, place


# -------------------------------------------------------------------- the link


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
        """Up to `most` of the items that it has not begun: the last ones that it got."""
        taken = self.take_tokens(most)
        self.window = self.window.taken_back(taken)
        items = [self.in_flight.pop() for _ in range(taken)]
        items.reverse()
        for item in items:
            item.future.place = None
        return items

    def finished(self, result: Any) -> Item | None:
        """The reported item; None for one that was skipped."""
        if result.kind == SKIPPED:
            self.window = self.window.skipped()
            return None
        item = self.in_flight.popleft()
        assert item.number == result.number, (item.number, result.number)
        self.window = self.window.finished()
        self.done += 1
        return item

    def lost(self) -> tuple[list[Item], list[Item]]:
        """Once the worker is gone: (the item that it had begun, if any; the items that it had not)."""
        unstarted = self.take_back(len(self.in_flight))
        return list(self.in_flight), unstarted

    # ---------------------------------------------------------------- how it is reached

    def begin(self) -> None:
        """From now on `hear` is called."""

    def send(self, items: Sequence[Item]) -> list[Item]:
        """Items that are on their way; the others have failed."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what could not be sent before."""

    def take_tokens(self, most: int) -> int:
        """How many of up to `most` items it will not begin any more."""
        return 0

    def forget(self, key: int) -> None:
        """No item of that function is left."""
        raise NotImplementedError

    def value(self, result: Any) -> Any:
        """The reported value, unpickled."""
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
                parts.append(pack(FUNCTION, function.payload, function.key))
            parts.append(HEAD.pack(len(body), WORK, descriptor is not None, function.key, item.number, tells))
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
        self._post(pack(SHARED, body, descriptors=descriptor is not None), descriptor)

    def forget(self, key: int) -> None:
        if key in self._known:
            self._known.remove(key)
            self._post(pack(FORGET, key=key), None)

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

    def value(self, result: Frame) -> Any:
        return from_body(result.body, result.descriptors)

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
