"""What the shells of jobs note: that a run began, and how it ended. One file for each user, which they append to.

Whoever is broker learns from it what happened while none ran. A user can write nonsense into their own journal, and so
about their own jobs only; a broker that is root therefore opens it as carefully as anything of a stranger's.
"""

from __future__ import annotations

import os
import stat

from gpulease.broker.runs import Fate

MOST = 64 << 20  # bytes that are read of one journal


def read(path: str, uid: int) -> dict[str, Fate]:
    """By name of the run, as `12.1`; the last note counts."""
    found: dict[str, Fate] = {}
    descriptor = open_own(path, uid)
    if descriptor is None:
        return found
    with open(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - MOST))
        for line in file.read(MOST).decode("ascii", "replace").splitlines():
            words = line.split()
            if 2 <= len(words) <= 3 and words[1].isdecimal():
                found[words[0]] = _fate(words)
    return found


def _fate(words: list[str]) -> Fate:
    pid = int(words[1])
    if len(words) == 2:
        return Fate(pid)
    return Fate(pid, int(words[2])) if words[2].isdecimal() else Fate(pid, trouble=words[2])


def clear(path: str, uid: int) -> None:
    """Forget all notes; only while nothing of this user runs."""
    descriptor = open_own(path, uid, os.O_WRONLY)
    if descriptor is not None:
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def open_own(path: str, uid: int, flags: int = os.O_RDONLY, links: int = 1) -> int | None:
    """A plain file of `uid`; None for a pipe, a device, a link or somebody else's: those may hang or harm a broker."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode) or seen.st_uid != uid or seen.st_nlink != links:
        os.close(descriptor)
        return None
    return descriptor


def tail(path: str, uid: int, begin: int, most: int) -> bytes:
    """The end of what was written behind `begin`."""
    descriptor = open_own(os.path.realpath(path), uid)
    if descriptor is None:
        return b""
    with open(descriptor, "rb") as file:
        file.seek(max(begin, os.fstat(descriptor).st_size - most))
        return file.read(most)
