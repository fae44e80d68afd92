"""Whether a process ends as soon as a command below it has answered: then nothing can be held for it."""

from __future__ import annotations

import os

from gpulease.identity import UNSEEN, WRAPPERS, parent_of, process_name

READABLE = 0o400


def ends_with(pid: int, owner: int, output: int = 1) -> bool:
    """Whether `owner` is `pid`, a wrapper around it, or the shell that was forked for the `$(…)` it is run in."""
    above: int | None = pid
    while above is not None and above > 1 and above != owner:
        above = parent_of(above)
    if above != owner:
        return False
    return owner == pid or process_name(owner) in WRAPPERS or _reads(parent_of(owner), output)


def _reads(pid: int | None, output: int) -> bool:
    """Whether `pid` has the other end of the pipe that `output` is: the shell that wants the text of `$(…)` has."""
    folder = f"/proc/{pid}/fd"
    try:
        pipe = os.fstat(output)
        return any(_is_read_end(f"{folder}/{name}", pipe) for name in os.listdir(folder))
    except OSError:
        return False  # closed, or hidden from us: nobody knows, so nothing is refused


def _is_read_end(path: str, pipe: os.stat_result) -> bool:
    try:
        return bool(os.lstat(path).st_mode & READABLE) and os.path.samestat(os.stat(path), pipe)
    except UNSEEN:
        return False
