"""How a worker runs items, and its end of the connection with one program: reads items, sends results."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from gpulease.errors import CannotPickle, in_words
from gpulease.pool import context, link
from gpulease.pool.failures import pack_failure
from gpulease.pool.link import Frame, Receiver
from gpulease.pool.pickling import Packed, from_body, pack, to_body, unpack


def attempt(call: Callable[[], Any]) -> tuple[int, Packed, float]:
    """(RESULT or ERROR, what it returned or raised, seconds)."""
    began = time.perf_counter()
    try:
        kind, packed = link.RESULT, pack(call(), "The result")
    except BaseException as error:
        kind, packed = link.ERROR, pack_failure(error)
    return kind, packed, time.perf_counter() - began


class Functions:
    """What a worker got, by key; unpickled with the first item."""

    def __init__(self) -> None:
        self._known: dict[int, Callable[..., Any] | bytes] = {}

    def learn(self, key: int, payload: bytes) -> None:
        self._known[key] = payload

    def forget(self, key: int) -> None:
        self._known.pop(key, None)

    def run(self, key: int, load: Callable[[], Any]) -> tuple[int, Packed, float]:
        """One item; `load` gives its arguments."""
        return attempt(lambda: self._call(key, *load()))

    def _call(self, key: int, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        function = self._known[key]
        if isinstance(function, bytes):
            function = self._known[key] = unpack(function)
        return function(*arguments, **keywords)


class Session:
    def __init__(self, connected: socket.socket, tokens: int, worker: context.Worker | None = None) -> None:
        self.socket = connected
        self.waiting: deque[Frame] = deque()
        self._entered = worker  # as its items see it
        self._refusal: Packed | None = None  # what each item fails with, where shared data could not be read
        self._tokens = tokens
        self._receiver = Receiver(connected)
        self._functions = Functions()

    def receive(self) -> None:
        """Raises EOFError when the program is gone."""
        self.waiting.extend(self._receiver.receive())

    def run_next(self) -> bool:
        """Whether that was an item that ran."""
        frame = self.waiting.popleft()
        if frame.kind == link.WORK:
            return self._work(frame)
        if frame.kind == link.FUNCTION:
            self._functions.learn(frame.key, frame.body)
        elif frame.kind == link.FORGET:
            self._functions.forget(frame.key)
        elif frame.kind == link.SHARED:
            self._share(frame)
        return False

    def close(self) -> None:
        for frame in self.waiting:
            _drop(frame)
        self.waiting.clear()
        self.socket.close()
        os.close(self._tokens)

    def _work(self, frame: Frame) -> bool:
        try:
            os.eventfd_read(self._tokens)
        except BlockingIOError:  # the pool took it back
            _drop(frame)
            self._send(link.SKIPPED, frame.number, Packed(b""), 0.0)
            return False
        if self._refusal is not None:
            _drop(frame)
            self._send(link.ERROR, frame.number, self._refusal, 0.0)
            return False
        if frame.seconds:
            self._send(link.STARTED, frame.number, Packed(b""), 0.0)
        context.current = self._entered
        kind, packed, seconds = self._functions.run(frame.key, lambda: from_body(frame.body, frame.descriptors))
        self._send(kind, frame.number, packed, seconds)
        return True

    def _share(self, frame: Frame) -> None:
        """For the items of this program alone: what it gives takes the place of what the pool has."""

        def merge() -> None:
            assert self._entered is not None
            given = from_body(frame.body, frame.descriptors)
            shared = MappingProxyType({**self._entered.shared, **given})
            self._entered = self._entered._replace(shared=shared)

        kind, packed, _ = attempt(merge)
        self._refusal = packed if kind == link.ERROR else None

    def _send(self, kind: int, number: int, packed: Packed, seconds: float) -> None:
        try:
            body, descriptor = to_body(packed)
        except OSError as error:  # no memory for a large result
            trouble = CannotPickle(
                f"The result has no room in shared memory: {in_words(error)}.", "Return less at once."
            )
            return self._send(link.ERROR, number, pack_failure(trouble), seconds)
        data = link.HEAD.pack(len(body), kind, descriptor is not None, 0, number, seconds) + body
        try:
            link.send_all(self.socket, data, () if descriptor is None else (descriptor,))
        except OSError:
            pass  # nobody waits for it any more; the next read says so
        if descriptor is not None:
            os.close(descriptor)


def _drop(frame: Frame) -> None:
    for descriptor in frame.descriptors:
        os.close(descriptor)
