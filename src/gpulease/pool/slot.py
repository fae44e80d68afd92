"""One place in a crew: the worker process that fills it now, and how to reach it."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulease.pool import frames
from gpulease.pool.log import Lines
from gpulease.pool.outbox import make_page
from gpulease.pool.process import Process

SOURCES = str(Path(__file__).parents[2])

STARTING, READY, STOPPING, EMPTY = "starting", "ready", "stopping", "empty"


class Slot:
    def __init__(self, number: int) -> None:
        self.number = number
        self.name = f"worker {number}"
        self.state = EMPTY
        self.gpus = ""
        self.lease: str | None = None
        self.broker: str | None = None  # where the lease is known
        self.renewing = False  # its lease was ended: the next worker asks for another
        self.since = 0.0
        self.was_ready = self.waits = False
        self.failures = 0  # starts in a row of which nothing came
        self.process: Process | None = None
        self.pidfd = -1
        self.output = -1
        self.lines = Lines()
        self._control: socket.socket | None = None
        self._receiver: frames.Receiver | None = None

    @property
    def label(self) -> str:
        return f"{self.name}, GPU {self.gpus}" if self.gpus else self.name

    def start(self, setup: Mapping[str, Any], memory: int | None) -> None:
        """Called in the thread that lives as long as the crew: the worker ends with it."""
        ours, theirs = socket.socketpair()
        output, printing = os.pipe()
        inherited = os.environ.get("PYTHONPATH")
        environ = {**os.environ, "PYTHONPATH": f"{SOURCES}:{inherited}" if inherited else SOURCES}
        words = [sys.executable, "-P", "-m", "gpulease.pool.worker", str(os.getpid())]
        self.process = Process(words, environ, printing, theirs.fileno())
        theirs.close()
        os.close(printing)
        self.pidfd, self.output = self.process.pidfd, output
        os.set_blocking(output, False)
        self._control, self._receiver = ours, frames.Receiver(ours)
        self.was_ready = self.waits = False
        self.state, self.gpus, self.lease, self.since = STARTING, "", None, time.time()
        restored = {"PYTHONPATH": inherited} if inherited else {}
        body = pickle.dumps(
            {
                **setup,
                "name": self.name,
                "environ": {**setup["environ"], **restored},
                "unset": [] if inherited else ["PYTHONPATH"],
            }
        )
        self._tell(body, () if memory is None else (memory,))

    @property
    def control(self) -> int:
        return -1 if self._control is None else self._control.fileno()

    def hear(self) -> list[dict[str, Any]]:
        """What the worker told about itself. Raises EOFError at its end."""
        assert self._receiver is not None
        return [pickle.loads(frame.body) for frame in self._receiver.receive()]

    def open_session(self) -> tuple[socket.socket, int, int]:
        """A new connection with the worker for one program: our end of it, the tokens, the page of results."""
        ours, theirs = socket.socketpair()
        tokens = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        page = make_page()
        with theirs:
            self._tell(pickle.dumps({"do": "session"}), (theirs.fileno(), tokens, page))
        return ours, tokens, page

    def stop(self) -> None:
        """A ready worker ends after what it runs now; one that still waits or loads ends at once."""
        if self.state == READY:
            self._tell(pickle.dumps({"do": "stop"}), ())
        elif self.state == STARTING:
            self.kill()
        if self.state != EMPTY:
            self.state = STOPPING

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def ended(self) -> int:
        """Clean up after a process that is gone; its return code."""
        assert self.process is not None
        assert self._control is not None
        code = self.process.wait()
        os.close(self.output)
        self._control.close()
        self.state, self.process = EMPTY, None
        self.lines = Lines()
        return code

    def _tell(self, body: bytes, descriptors: tuple[int, ...]) -> None:
        assert self._control is not None
        data = frames.pack(frames.CONTROL, body, descriptors=len(descriptors))
        try:
            frames.send_all(self._control, data, descriptors)
        except OSError:
            pass  # it ended; its end is noticed by itself
