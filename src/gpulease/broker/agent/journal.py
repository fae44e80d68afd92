"""What the shell of a run notes: that it began, and how its command ended. A small file for each run, its user's own.

Whoever is broker learns from it what happened while none ran. All of its bytes are there before the run begins, so that
a disk that fills up meanwhile cannot keep the end from being noted.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from gpulease.broker.runs import NOT_NOTED, SHORTAGES, TROUBLES, RunNote

ROOM = 64  # bytes of one note
BLANK = b" " * (ROOM - 1) + b"\n"
LONGEST = 10  # digits of a number in it


def prepare(path: str) -> None:
    """Make room for the note, or raise and leave nothing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # it may be a pipe
    descriptor = os.open(path, flags, 0o600)
    try:
        os.write(descriptor, BLANK)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def read(path: str) -> RunNote:
    """What is known of a run."""
    data = read_own(path, 0, ROOM)
    if data == BLANK:
        return RunNote(trouble=NOT_NOTED)
    words = (data or b"").decode("ascii", "replace").partition("\n")[0].split()
    pid = int(words[0]) if 1 <= len(words) <= 2 and _is_number(words[0]) else 0
    if pid <= 1:
        return RunNote()
    if len(words) == 1:
        return RunNote(pid)
    if words[1] in TROUBLES:
        return RunNote(pid, trouble=words[1])
    return RunNote(pid, int(words[1]) if _is_number(words[1]) and int(words[1]) <= 255 else None)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= LONGEST


def clear(folder: str, kept: Iterable[str]) -> None:
    """Forget all runs but these."""
    keep = set(kept)
    for name in os.listdir(folder):
        if name not in keep:
            os.unlink(os.path.join(folder, name))


def read_own(path: str, begin: int, most: int) -> bytes | None:
    """Of a plain file, from `begin`; None where it is a pipe, a device or not there.

    Raises where that cannot be known now, for want of a descriptor or because the disk fails.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as trouble:
        if trouble.errno in SHORTAGES:
            raise
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        file.seek(begin)
        return file.read(most)
