"""The broker's side of the child that runs the administrator's order: one question at a time, each with a deadline.

The question lies in a file without a name, so that a child which does not read keeps nobody waiting.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from gpulease.broker.core.events import Ordered
from gpulease.broker.core.instructions import AskOrder
from gpulease.errors import GpuleaseError
from gpulease.protocol.wire import Unpacker
from gpulease.system import identity

READ = 1 << 16
START = 15.0  # seconds in which the function and what it imports are loaded
ANSWER = 2.0  # seconds for each answer


class Ordering:
    def __init__(self, poll: select.epoll, tell: Callable[[Ordered], None]) -> None:
        self._poll, self._tell = poll, tell
        self._function = ""
        self._child: subprocess.Popen[bytes] | None = None
        self._start_time: int | None = None  # of the child
        self._question = -1  # a descriptor
        self._unpacker = Unpacker()
        self.due: float | None = None  # when the question under way is overdue

    @property
    def descriptor(self) -> int:
        return -1 if self._child is None or self._child.stdout is None else self._child.stdout.fileno()

    def ask(self, one: AskOrder, now: float) -> None:
        if one.function != self._function:
            self.close()
            self._function = one.function
        if not one.waiting:
            return
        try:
            self.due = now + (START if self._child is None else ANSWER)
            if self._child is None:
                self._start()
            self._write(one)
        except OSError as error:
            self._failed(f"it could not be asked: {error.strerror}")

    def _start(self) -> None:
        self._question = os.memfd_create("gpulease-order")
        words = [sys.executable, "-P", "-m", "gpulease.broker.children.order", self._function, str(self._question)]
        self._child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0, pass_fds=(self._question,)
        )
        self._start_time = identity.start_time(self._child.pid)
        self._unpacker = Unpacker()
        self._poll.register(self.descriptor, select.EPOLLIN)

    def _write(self, one: AskOrder) -> None:
        assert self._child is not None
        assert self._child.stdin is not None
        text = json.dumps({"now": one.now, "waiting": one.waiting}).encode()
        os.ftruncate(self._question, 0)
        os.pwrite(self._question, text, 0)
        try:
            os.write(self._child.stdin.fileno(), b"%d\n" % len(text))  # fits: the last one was read before its answer
        except BrokenPipeError:
            pass  # its end is read from the other pipe

    def read(self, now: float) -> None:
        data = os.read(self.descriptor, READ)
        try:
            messages = self._unpacker.feed(data)
        except GpuleaseError as error:
            return self._failed(error.what)
        if not data:
            return self._failed("its process ended")
        for message in messages:
            if self.due is not None and "loaded" in message:
                self.due = now + ANSWER
            elif self.due is not None:
                self.due = None
                self._tell(Ordered(self._function, message.get("order"), message.get("trouble")))
        return None

    def overdue(self) -> None:
        self._failed("it did not answer in time")

    def _failed(self, trouble: str) -> None:
        asked = self.due is not None
        self.close()
        if asked:
            self._tell(Ordered(self._function, None, trouble))

    def close(self) -> None:
        self.due = None
        if self._question >= 0:
            os.close(self._question)
            self._question = -1
        if self._child is None:
            return
        self._poll.unregister(self.descriptor)
        _kill_group(self._child.pid, self._start_time)
        for stream in (self._child.stdin, self._child.stdout):
            if stream:
                stream.close()
        self._child = None


def _kill_group(leader: int, start_time: int | None) -> None:
    """The child, and what the function started; the kernel gives the number to nobody else while any of them lives."""
    if identity.start_time(leader) in (start_time, None):
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
