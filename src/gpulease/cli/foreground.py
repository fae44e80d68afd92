"""Runs one command in the foreground of this terminal and stays behind it.

The command shares our process group, so the terminal's own signals reach it without us; those sent
to us by another process are passed on. Nothing here ends before the command does.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gpulease.system.execution import cannot_start

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


HELD = (*PASSED_ON, signal.SIGCHLD)


@contextmanager
def signals_held() -> Iterator[Iterable[int]]:
    """No signal ends us in here, so that what is made is also taken away. Gives the mask as it was."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by some parents; then nobody could wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield before
    finally:
        while signal.sigtimedwait(HELD, 0):  # came too late to be passed on
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def run_child(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> int:
    """The command's own exit code, or 128+n when signal n ended it; to be called with signals held."""
    for early in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if early in signal.sigpending():
            return 128 + early
    return _wait(_start(command, environ, mask))


def _start(command: Sequence[str], environ: Mapping[str, str], mask: Iterable[int]) -> int:
    program = shutil.which(command[0], path=environ.get("PATH")) or command[0]
    defaults = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
    try:
        return os.posix_spawn(program, list(command), dict(environ), setsigmask=mask, setsigdef=defaults)
    except (OSError, ValueError) as error:
        raise cannot_start(command[0], error) from None


def _wait(pid: int) -> int:
    while True:
        arrived = signal.sigwaitinfo(HELD)
        if arrived.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        elif arrived.si_code <= 0:  # sent by a process; from the terminal the command has its own
            os.kill(pid, arrived.si_signo)
