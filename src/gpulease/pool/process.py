"""A child process, started without `subprocess`.

`Popen` learns that the program has started from the end of a pipe. A program that forks in another thread at that
moment, as `multiprocessing` does, gives a copy of the pipe to its own child, and `Popen` waits for that child's end.
`posix_spawn` has no pipe.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping


class Process:
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
        self._code: int | None = None

    def kill(self) -> None:
        if self._code is None:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        if self._code is None:
            try:
                self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:  # somebody else in this program waits for every child
                self._code = 255
            os.close(self.pidfd)
        return self._code
