"""Whether a process ends as soon as a command below it has answered: then nothing can be held for it."""

from __future__ import annotations

import os
from stat import S_ISFIFO

from gpulease.system.identity import UNSEEN, WRAPPERS, parent_of, process_name, same_program

READABLE = 0o400


def ends_with(pid: int, owner: int, output: int = 1) -> bool:
    """Whether `owner` is `pid`, a wrapper around it, or the shell that was forked for the `$(…)` it is run in."""
    above: int | None = pid
    while above is not None and above > 1 and above != owner:
        above = parent_of(above)
    if above != owner:
        return False
    return owner == pid or process_name(owner) in WRAPPERS or _substitutes(owner, output)


def _substitutes(owner: int, output: int) -> bool:
    """Whether `owner` was forked for `$(…)`: it runs no program of its own, and its parent reads the output.

    A program that was started lives on after the command, whatever its parent reads: cron does.
    """
    shell = parent_of(owner)
    return shell is not None and same_program(owner, shell) and _reads(shell, output)


def _reads(pid: int, output: int) -> bool:
    """Whether `output` is a pipe whose other end `pid` has. Anybody may read /dev/null, or the terminal."""
    folder = f"/proc/{pid}/fd"
    try:
        pipe = os.fstat(output)
        return S_ISFIFO(pipe.st_mode) and any(_is_read_end(f"{folder}/{name}", pipe) for name in os.listdir(folder))
    except OSError:
        return False  # closed, or hidden from us: nobody knows, so nothing is refused


def _is_read_end(path: str, pipe: os.stat_result) -> bool:
    try:
        return bool(os.lstat(path).st_mode & READABLE) and os.path.samestat(os.stat(path), pipe)
    except UNSEEN:
        return False
