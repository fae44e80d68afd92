"""`gpulease shell`: a subshell that holds GPUs until it is left."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gpulease.cli.options import acquire_fields, add_of_job, add_request, enter_folder
from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.system.execution import cannot_start

EXAMPLES = """\
The prompt shows the GPUs, as `(gpu 0,1)`. `exit` releases them.

examples:
  gpulease shell -n 2
  gpulease shell --mem 10G --note "debugging"
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_request(parser, "how long you expect to need it, as 2h; it is not a limit")
    add_of_job(parser, "cwd")


def run(arguments: Namespace) -> int:
    from gpulease.cli.lease_wait import environment_of, wait_for
    from gpulease.system.execution import become

    enter_folder(arguments.cwd)
    granted, _ = wait_for(acquire_fields(arguments, "shell"))
    changes = environment_of(granted, arguments.visible_by)
    print(f"Yours until you leave this shell (exit): GPU {changes['GPULEASE_DEVICES']}", file=sys.stderr)
    command, marks = marked_shell(f"gpu {changes['GPULEASE_DEVICES']}", os.environ)
    become(command, {**changes, **marks})


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


# -------------------------------------------------------------------- a prompt

FILES = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "prompts"))


def marked_shell(mark: str, environ: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The user's shell as a command, and what it needs in its environment to show `mark`."""
    shell = environ.get("SHELL") or "/bin/sh"
    if not sys.stdin.isatty():
        return [shell], {}
    text = f"{environ.get('GPULEASE_PROMPT', '')}({mark}) "
    changes = {"GPULEASE_PROMPT": text}
    name = os.path.basename(shell)
    if name == "bash":
        return [shell, "--rcfile", os.path.join(FILES, "bash.sh")], changes
    if name == "zsh":
        theirs = environ.get("ZDOTDIR") or environ.get("HOME") or os.path.expanduser("~")
        return [shell], {**changes, "ZDOTDIR": os.path.join(FILES, "zsh"), "GPULEASE_ZDOTDIR": theirs}
    if name == "fish":
        return [shell, "--init-command", f"source '{os.path.join(FILES, 'fish.fish')}'"], changes
    return [shell], {**changes, "PS1": f"{text}{'#' if os.geteuid() == 0 else '$'} "}
