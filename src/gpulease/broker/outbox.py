"""Messages that wait until a process of its own sends them: one process at a time, for all that came meanwhile.

So ten thousand jobs that end at once do not start ten thousand processes, and a receiver that hangs keeps
nobody waiting. Hooks and notices leave so. Not here: what the process does (broker/children/hooks.py, notices/send.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from math import inf
from typing import BinaryIO

from gpulease.errors import in_words
from gpulease.protocol.messages import Message


class Outbox:
    def __init__(self, module: str, most: int, log: Callable[[str], None]) -> None:
        """`module` is run with the documents on its standard input; of more than `most` the oldest are dropped."""
        self._module, self._most, self._log = module, most, log
        self._pending: list[Message] = []
        self._dropped = 0
        self._running: int | None = None

    def add(self, document: Message) -> None:
        self._pending.append(document)
        if len(self._pending) > self._most:
            del self._pending[0]
            self._dropped += 1

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def ready(self) -> bool:
        """Whether there is something to tell, and nobody who is telling."""
        return bool(self._pending) and self._running is None

    def start(self) -> int | None:
        """The pid of a process that tells of all that is pending; None when one still runs, or none is needed."""
        if not self.ready:
            return None
        pending, self._pending = self._pending, []
        if self._dropped:
            pending.append({"dropped": self._dropped})
            self._dropped = 0
        try:
            self._running = _start(self._module, "\n".join(map(json.dumps, pending)).encode())
        except OSError as trouble:
            self._log(f"{self._module} could not be started: {in_words(trouble)}")
        return self._running

    def flush(self) -> None:
        """Send everything that is left, beside a process that still runs: the owner of this is about to end."""
        self._running = None
        self.start()

    def ended(self, pid: int) -> bool:
        """Whether it was this one's process that ended."""
        ours = pid == self._running
        if ours:
            self._running = None
        return ours


class PacedOutbox(Outbox):
    """Gathers for a moment before it sends, and keeps a least time between two messages."""

    GATHER = 2.0  # seconds: what belongs together happens together

    def __init__(self, module: str, most: int, log: Callable[[str], None]) -> None:
        super().__init__(module, most, log)
        self._told_at = -inf
        self._due = inf

    def add_paced(self, document: Message, now: float, every: float) -> None:
        if not self._pending:
            self._due = max(now + min(self.GATHER, every), self._told_at + every)
        self.add(document)

    def due(self, now: float) -> float | None:
        """Seconds until there is something to do; None when there is nothing to wait for but the end of a process."""
        return max(0.0, self._due - now) if self.ready else None

    def start_if_due(self, now: float) -> None:
        if self.ready and now >= self._due:
            self._told_at = now
            self.start()


def _start(module: str, lines: bytes) -> int:
    """With the lines in a file in memory: a pipe could make us wait for its reader.

    There may be passwords in them, and everybody sees the words of a process.
    """
    words = [sys.executable, "-P", "-m", module]
    with in_memory(lines) as file:
        child = subprocess.Popen(words, stdin=file, stdout=subprocess.DEVNULL, start_new_session=True, cwd="/")
    child.returncode = 0  # reaped by its pid elsewhere; keeps Popen from waiting for it
    return child.pid


def in_memory(content: bytes) -> BinaryIO:
    file = open(os.memfd_create("told"), "r+b")  # noqa: SIM115  # closed by the caller
    file.write(content)
    file.seek(0)
    return file
