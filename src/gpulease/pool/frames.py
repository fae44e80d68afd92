"""Frames between a pool and its workers: a fixed head, a body, and the descriptors that travel with it.

Not for: what a body means. Several frames are sent in one system call, and read in one.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

# length of the body, kind, descriptors, key of the function, number of the item, seconds that it ran
HEAD = struct.Struct("<IBBIQd")

FUNCTION = 1  # to a worker: a function, under a key
WORK = 2  # to a worker: the arguments of one item; `seconds` is not 0 where its start is to be told
FORGET = 3  # to a worker: drop the function of that key
RESULT = 4  # from a worker: what the item returned
ERROR = 5  # from a worker: what the item raised
SKIPPED = 6  # from a worker: the item was taken back before it began
CONTROL = 7  # between a worker and whoever started it, or a program and a named pool: a dictionary
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


def pack_json(told: dict[str, Any], descriptors: int = 0) -> bytes:
    """For what comes from another program: nobody unpickles it."""
    return pack(CONTROL, json.dumps(told).encode(), descriptors=descriptors)


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
