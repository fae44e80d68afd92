"""A process that may hang where the broker must not: it reads questions from a pipe and answers on another.

It is started by the first question, and by the next one after it ended. Nobody waits for it: what it does not take at
once ends it, and `due` says when an answer is overdue. Its owner decides what then becomes of the question.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpulease.protocol.wire import LIMIT, Unpacker
from gpulease.system import identity

READ = 1 << 16


class Child:
    def __init__(self, poll: select.epoll, words: Sequence[str], largest: int = LIMIT) -> None:
        """`words`: a module and its arguments. `largest`: bytes of an answer."""
        self._poll, self._words, self._largest = poll, words, largest
        self._process: subprocess.Popen[bytes] | None = None
        self._ends = (-1, -1)  # descriptors: its input and its output
        self._unpacker = Unpacker(largest)
        self.key: tuple[int, int | None] = (0, None)  # pid and start time
        self.due: float | None = None  # when the answer is overdue; its owner clears it

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def descriptor(self) -> int:
        """Where it answers."""
        return self._ends[1]

    def start(self, given: Sequence[int] = ()) -> None:
        """Raises OSError. `given`: descriptors that it shares."""
        words, pipe = [sys.executable, "-P", "-m", *self._words], subprocess.PIPE
        self._process = child = subprocess.Popen(words, stdin=pipe, stdout=pipe, process_group=0, pass_fds=given)
        assert child.stdin is not None
        assert child.stdout is not None
        self._ends, self._unpacker = (child.stdin.fileno(), child.stdout.fileno()), Unpacker(self._largest)
        self.key = (child.pid, _start_time(child.pid))
        os.set_blocking(self._ends[0], False)
        self._poll.register(self.descriptor, select.EPOLLIN)

    def send(self, data: bytes, due: float | None = None) -> None:
        """Raises OSError where none can be started. The end of one that takes no more is read next."""
        self.due = due
        if self._process is None:
            self.start()
        sent = 0
        with suppress(BrokenPipeError, BlockingIOError):
            sent = os.write(self._ends[0], data)
        if sent < len(data):
            self._kill()

    def read(self) -> bytes:
        """What it says now; nothing when it has ended."""
        return os.read(self.descriptor, READ)

    def messages(self) -> list[dict[str, Any]] | None:
        """The same as messages; None when it has ended."""
        data = self.read()
        return self._unpacker.feed(data) if data else None

    def close(self, kill: bool = True) -> None:
        """Without `kill` it sees that nobody asks any more, and ends by itself."""
        if self._process is None:
            return
        self._poll.unregister(self.descriptor)
        if kill:
            self._kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream:
                stream.close()
        self._process, self._ends = None, (-1, -1)

    def _kill(self) -> None:
        """And what it started. The kernel gives their group's number to nobody else while any of them lives."""
        (pid, began), seen = self.key, _start_time(self.key[0])
        if None in (began, seen) or began == seen:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)


def _start_time(pid: int) -> int | None:
    """None also where there is no descriptor left to look with."""
    with suppress(OSError):
        return identity.start_time(pid)
    return None
