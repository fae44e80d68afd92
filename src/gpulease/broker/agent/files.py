"""The files of a run: the note that its shell writes, and its log, which is kept below its limit."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterable

from gpulease.broker.core.events import NOT_NOTED, SHORTAGES, TROUBLES, RunNote
from gpulease.model.quantities import format_bytes

# -------------------------------------------------------------------- the note

# A small file for each run, its user's own: that the run began, and how its command ended. So the next broker learns
# what happened while none ran. All of its bytes are there before the run begins, so that a disk that fills up meanwhile
# cannot keep the end from being noted.
ROOM = 64  # bytes of one note
BLANK = b" " * (ROOM - 1) + b"\n"
LONGEST = 10  # digits of a number in it


def prepare_note(path: str) -> None:
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


def read_note(path: str) -> RunNote:
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


def remove_notes(folder: str, kept: Iterable[str]) -> None:
    """Forget all runs but these."""
    keep = set(kept)
    for name in os.listdir(folder):
        if name not in keep:
            os.unlink(os.path.join(folder, name))


def read_own(path: str, begin: int, most: int) -> bytes | None:
    """Of a plain file, from `begin`; None where it is a pipe, a device or not there.

    Raises if that cannot be known now, because there is no descriptor or because the disk fails.
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


# -------------------------------------------------------------------- the log

# The job's processes write to the file themselves and go on doing so. Where the file system can take bytes out of the
# beginning of a file (ext4, XFS) nothing else is lost; elsewhere what is written in the instant of the cut may be.
COLLAPSE_RANGE = 0x08
PART = 1 << 20  # bytes that are copied at a time


def cut_log(path: str, limit: int) -> bool:
    """Cut the log at `path` to half of `limit` when it is longer; whether it was."""
    try:
        if os.stat(path).st_size <= limit:
            return False
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size <= limit:
            return False
        notice = f"[gpulease: the oldest output was cut, since log-limit is {format_bytes(limit)}]\n".encode()
        begin = max(len(notice), seen.st_size - limit // 2)
        begin -= begin % seen.st_blksize
        if not (begin and _collapse(descriptor, begin)):
            _move(descriptor, max(begin, len(notice)), len(notice))
        os.pwrite(descriptor, notice, 0)
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _collapse(descriptor: int, length: int) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    offsets = ctypes.c_int64(0), ctypes.c_int64(length)
    return bool(libc.fallocate(descriptor, COLLAPSE_RANGE, *offsets) == 0)


def _move(descriptor: int, source: int, target: int) -> None:
    """Everything from `source` on to `target`, what is written meanwhile too, until nothing more comes."""
    while data := os.pread(descriptor, PART, source):
        os.pwrite(descriptor, data, target)
        source, target = source + len(data), target + len(data)
    os.ftruncate(descriptor, target)
