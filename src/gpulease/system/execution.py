"""Becoming another command: same pid, same terminal, its own exit code. And ending with the parent."""

from __future__ import annotations

import os

from gpulease.errors import CommandNotFound, GpuleaseError, in_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn


PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """The kernel ends this process with the thread that started it, even in the midst of a long call."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the kernel was asked


def use_default_signals() -> None:
    """Undo what the parent ignored or blocked: it would hold for all children, and a shell cannot trap it again.

    A script's background commands ignore SIGINT and SIGQUIT, nohup's ignore SIGHUP. A broker may be started by either.
    """
    import signal

    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Python ignores itself
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def become(command: Sequence[str], changes: Mapping[str, str]) -> NoReturn:
    """Replace this process by `command` with `changes` in its environment."""
    import signal

    # Python ignores these two, and what is ignored stays ignored through exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), {**os.environ, **changes})
    except (OSError, ValueError) as error:
        raise cannot_start(command[0], error) from None


def check_command(program: str, search: str | None = None, cwd: str = "") -> None:
    """Raise now what would be raised after a long wait: no such command, or one that may not be run.

    It is looked for as a process in `cwd` with the PATH `search` would, or as this one would.
    """
    environ = os.environ if search is None else {"PATH": search}
    folders = [""] if "/" in program else os.get_exec_path(environ)
    paths = [os.path.join(cwd, folder, program) for folder in folders]
    present = [path for path in paths if os.path.isfile(path)]
    if "/" in program and os.path.isdir(paths[0]):
        raise cannot_start(program, IsADirectoryError())
    if not any(os.access(path, os.X_OK) for path in present):
        missing: OSError = PermissionError() if present else FileNotFoundError()
        raise cannot_start(program, missing)


def cannot_start(program: str, error: Exception) -> GpuleaseError:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        if " " in program.strip():
            step = "Give each word by itself, without quotes around all of them."
            return CommandNotFound(f"The command {program!r} does not exist: it is one word with spaces in it.", step)
        return CommandNotFound(f"The command {program!r} does not exist.")
    if isinstance(error, IsADirectoryError) or os.path.isdir(program):
        return CommandNotFound(f"{program!r} is a folder, not a command.")
    if isinstance(error, PermissionError):
        return CommandNotFound(
            f"The command {program!r} may not be run.", "Make it executable, or run it by its interpreter."
        )
    return CommandNotFound(f"The command {program!r} cannot be started: {in_words(error)}.")
