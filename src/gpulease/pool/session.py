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
from gpulease.pool.pickling import Packed, from_body, pack, to_body, unpack


class Session:
    def __init__(self, connected: socket.socket, tokens: int) -> None:
        self.socket = connected
        self.waiting: deque[Frame] = deque()
        self._tokens = tokens
        self._receiver = Receiver(connected)
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
            self._functions.pop(frame.key, None)

    def close(self) -> None:
        for frame in self.waiting:
            for descriptor in frame.descriptors:
                os.close(descriptor)
        self.waiting.clear()
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
        try:
            frames.send_all(self.socket, data, () if descriptor is None else (descriptor,))
        except OSError:
            pass  # nobody waits for it any more; the next read says so
        if descriptor is not None:
            os.close(descriptor)
