"""Keeping the log of a running job below its limit: the oldest output is cut, and the log says so.

The job's processes write to the file themselves and go on doing so. Where the file system can take bytes out of the
beginning of a file (ext4, XFS) nothing else is lost; elsewhere what is written in the instant of the cut may be.
"""

from __future__ import annotations

import ctypes
import os
import stat

from gpulease.model.quantities import format_bytes

COLLAPSE_RANGE = 0x08
PART = 1 << 20  # bytes that are copied at a time


def cut(path: str, limit: int) -> bool:
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
