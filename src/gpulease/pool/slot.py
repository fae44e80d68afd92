"""One place for a worker: its process, what it holds, and whether and when another one follows in it.

One that ends before it is ready would do so again: three in a row are enough. One that was ready may have been killed,
or ended by an item, and is followed at once; only where it happens again and again, each time soon after the start,
the next one waits, each time longer.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpulease.model.quantities import pause_after
from gpulease.pool import link
from gpulease.pool.log import Lines

MAX_UNREADY = 3  # in a row
SOON = 1.0  # seconds after it was ready
FREE = 3  # ends in a row without a pause: as many as one item may cause
FIRST, LONGEST = 0.1, 30.0  # seconds of a pause


class Restarts(NamedTuple):
    unready: int = 0  # ends in a row before the worker was ready
    soon: int = 0  # ends in a row, of any kind, at most SOON after it was

    def ended(self, ready_for: float | None) -> Restarts:
        """After one more end; `ready_for` is None for a worker that never was."""
        if ready_for is None:
            return Restarts(self.unready + 1, self.soon + 1)
        return Restarts(0, self.soon + 1 if ready_for <= SOON else 0)

    @property
    def hopeless(self) -> bool:
        return self.unready >= MAX_UNREADY

    @property
    def pause(self) -> float:
        """Seconds before the next start."""
        return 0.0 if self.soon <= FREE else pause_after(self.soon - FREE, FIRST, LONGEST)


# -------------------------------------------------------------------- the slot

SOURCES = str(Path(__file__).parents[2])
# Not `-m`: `__main__` is the user's word. Nor PYTHONPATH, which is the environment of what a worker starts.
START = """
import sys
sys.path.insert(0, sys.argv[1])
from gpulease.pool.worker import main
main(int(sys.argv[2]))
"""

STARTING, READY, STOPPING, EMPTY = "starting", "ready", "stopping", "empty"


class WorkerSlot:
    def __init__(self, number: int, setup: Mapping[str, Any]) -> None:
        self.name = f"worker {number}"
        self._setup = {**setup, "name": self.name}  # what each worker here is told at its start
        self.state = EMPTY
        self.gpus = ""
        self.lease: str | None = None
        self.broker: str | None = None  # where the lease is known
        self.renewing = False  # another worker follows this one, maybe after a pause
        self.waits = False
        self.worn = False  # it has done as many items as it may, and ends
        self.ready_since: float | None = None
        self.restarts = Restarts()
        self.process: WorkerProcess | None = None
        self.pidfd = self.output = -1
        self.lines = Lines()
        self._control: socket.socket | None = None
        self._receiver: link.Receiver | None = None

    @property
    def label(self) -> str:
        return f"{self.name}, GPU {self.gpus}" if self.gpus else self.name

    def start(self, memory: int | None) -> None:
        """Called in the thread that lives as long as the group: the worker ends with it."""
        ours, theirs = socket.socketpair()
        output, printing = os.pipe()
        words = [sys.executable, "-P", "-c", START, SOURCES, str(os.getpid())]
        self.process = WorkerProcess(words, os.environ, printing, theirs.fileno())
        theirs.close()
        os.close(printing)
        self.pidfd, self.output = self.process.pidfd, output
        os.set_blocking(output, False)
        self._control, self._receiver = ours, link.Receiver(ours)
        self.waits, self.worn, self.ready_since = False, False, None
        self.state, self.gpus, self.lease = STARTING, "", None
        self._tell(pickle.dumps({"setup": self._setup}), () if memory is None else (memory,))

    @property
    def control(self) -> int:
        return -1 if self._control is None else self._control.fileno()

    def hear(self) -> list[dict[str, Any]]:
        """What the worker reports about itself. Raises EOFError at its end."""
        assert self._receiver is not None
        return [pickle.loads(frame.body) for frame in self._receiver.receive()]

    def open_session(self) -> tuple[socket.socket, int]:
        """A new connection with the worker for one program: our end of it, and the tokens."""
        ours, theirs = socket.socketpair()
        tokens = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        with theirs:
            self._tell(pickle.dumps({"do": "session"}), (theirs.fileno(), tokens))
        return ours, tokens

    def stop(self) -> None:
        """A ready worker ends after what it runs now; one that still waits or loads ends at once."""
        if self.state == READY:
            self._tell(pickle.dumps({"do": "stop"}), ())
        elif self.state == STARTING:
            self.kill()
        if self.state != EMPTY:
            self.state = STOPPING

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, which is heard of next."""
        if self.pidfd < 0:
            return False
        waiting = select.poll()
        waiting.register(self.pidfd, select.POLLIN)
        return bool(waiting.poll(0))

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
        data = link.pack(link.CONTROL, body, descriptors=len(descriptors))
        try:
            link.send_all(self._control, data, descriptors)
        except OSError:
            pass  # it ended; its end is noticed by itself


class WorkerProcess:
    """A child process, started without `subprocess`.

    `Popen` learns that the program has started from the end of a pipe. A program that forks in another thread at that
    moment, as `multiprocessing` does, gives a copy of the pipe to its own child, and `Popen` waits for that child's
    end. `posix_spawn` has no pipe.
    """

    def __init__(self, words: list[str], environ: Mapping[str, str], output: int, passed: int) -> None:
        """In a session of its own. `output` becomes stdout and stderr, `passed` descriptor 3."""
        actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, output, 1),
            (os.POSIX_SPAWN_DUP2, output, 2),
            (os.POSIX_SPAWN_DUP2, passed, 3),
        ]
        # Python ignores these two for itself; a program expects the system's way.
        usual = [signal.SIGPIPE, signal.SIGXFSZ]
        self.pid = os.posix_spawn(
            words[0], words, environ, file_actions=actions, setsid=True, setsigmask=[], setsigdef=usual
        )
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def wait(self) -> int:
        """Once it has ended: its exit code, or the negative number of the signal that ended it."""
        os.close(self.pidfd)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # somebody else in this program waits for every child
            return 255
