"""The worker's end of its connection with one program: reads items, runs them, sends results."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gpulease.errors import CannotPickle
from gpulease.pool import frames
from gpulease.pool.failures import pack_failure
from gpulease.pool.frames import Frame, Receiver
from gpulease.pool.outbox import Outbox
from gpulease.pool.pickling import Packed, from_body, pack, to_body, unpack


class Session:
    def __init__(self, connected: socket.socket, tokens: int, page: int) -> None:
        self.socket = connected
        self.waiting: deque[Frame] = deque()
        self._tokens = tokens
        self._receiver = Receiver(connected)
        self._outbox = Outbox(connected, page)
        os.close(page)
        self._functions: dict[int, Callable[..., Any] | bytes] = {}

    def receive(self) -> None:
        """Raises EOFError when the program is gone."""
        self.waiting.extend(self._receiver.receive())

    def run_next(self) -> None:
        frame = self.waiting.popleft()
        if frame.kind == frames.WORK:
            self._work(frame)
        elif frame.kind == frames.FUNCTION:
            self._functions[frame.key] = frame.body
        elif frame.kind == frames.FORGET:
            self._functions.clear()

    def close(self) -> None:
        for frame in self.waiting:
            for descriptor in frame.descriptors:
                os.close(descriptor)
        self.waiting.clear()
        self._outbox.close()
        self.socket.close()
        os.close(self._tokens)

    def _work(self, frame: Frame) -> None:
        try:
            os.eventfd_read(self._tokens)
        except BlockingIOError:  # the pool took it back
            for descriptor in frame.descriptors:
                os.close(descriptor)
            return self._send(frames.SKIPPED, frame.number, Packed(b""), 0.0)
        began = time.perf_counter()
        kind, packed = self._run(frame)
        self._send(kind, frame.number, packed, time.perf_counter() - began)

    def _run(self, frame: Frame) -> tuple[int, Packed]:
        try:
            arguments, keywords = from_body(frame.body, frame.descriptors)
            return frames.RESULT, pack(self._function(frame.key)(*arguments, **keywords), "The result")
        except BaseException as error:
            return frames.ERROR, pack_failure(error)

    def _function(self, key: int) -> Callable[..., Any]:
        function = self._functions[key]
        if isinstance(function, bytes):
            function = self._functions[key] = unpack(function)
        return function

    def _send(self, kind: int, number: int, packed: Packed, seconds: float) -> None:
        try:
            body, descriptor = to_body(packed)
        except OSError as error:  # no memory for a large result
            trouble = CannotPickle(f"The result has no room in shared memory: {error}.", "Return less at once.")
            return self._send(frames.ERROR, number, pack_failure(trouble), seconds)
        data = frames.HEAD.pack(len(body), kind, descriptor is not None, 0, number, seconds) + body
        self._outbox.send(data, seconds, bool(self.waiting), descriptor)
        if descriptor is not None:
            os.close(descriptor)
