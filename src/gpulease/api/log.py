"""Reading what a job wrote: ordinary files only, and never more than was asked for."""

from __future__ import annotations

import os
import re
import stat

from gpulease.errors import GpuleaseError, NotFound, NotPermitted
from gpulease.render.terminal import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

SEE_SHOW = "See `gpulease show` for where the output goes."
BLOCK = 1 << 16
MOST = 1 << 20  # bytes of the last lines: one line may be as long as the disk
LONGEST = 4000  # characters of one line
# What programs write to colour a terminal or to move on it; without it their words are easier to read.
ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|.)")


def open_log(path: str, uid: int | None = None) -> IO[bytes]:
    """Of ordinary files alone, and only of the job's user `uid`: root must not be led to others by a job's log."""
    try:
        descriptor = _open_checked(path, uid)
    except FileNotFoundError:
        raise
    except PermissionError:
        raise NotPermitted(f"The log {path!r} may not be read.", "Ask its owner, or root.") from None
    except OSError as error:
        raise NotFound(f"The log {path!r} cannot be read: {error.strerror}.", SEE_SHOW) from None
    return open(descriptor, "rb")


def _open_checked(path: str, uid: int | None) -> int:
    """Looked at before it is opened: to open some devices is to use them, and opening a FIFO may never return."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        seen = os.fstat(place)
        if not stat.S_ISREG(seen.st_mode):
            raise NotFound(f"The log {path!r} is not a regular file, so gpulease does not show it.", SEE_SHOW)
        if uid is not None and seen.st_uid != uid and os.geteuid() != uid:
            raise NotPermitted(f"The log {path!r} does not belong to the job's user, so it is not shown.", SEE_SHOW)
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(place)


class LogReader:
    """What is added to a log, and from its beginning what another file has that took its place.

    After `read`: `fresh`, whether it is another file than before; `skipped`, how many bytes were left out before what
    was read, since only so many are read at a time.
    """

    def __init__(self, path: str, uid: int | None = None) -> None:
        self.path, self.uid = path, uid
        self.position = self.size = self.skipped = 0
        self.fresh = False
        self._file: tuple[int, int] | None = None

    def read(self, most: int) -> bytes:
        """At most so many bytes; where more were added, the last. Raises as `open_log` does."""
        with open_log(self.path, self.uid) as file:
            seen = os.fstat(file.fileno())
            self.fresh = (seen.st_dev, seen.st_ino) != self._file or seen.st_size < self.position
            self._file, self.size = (seen.st_dev, seen.st_ino), seen.st_size
            before = 0 if self.fresh else self.position
            begin = max(before, seen.st_size - most)
            file.seek(begin)
            data = file.read(seen.st_size - begin)
        self.skipped, self.position = begin - before, begin + len(data)
        return data


def tail(path: str, lines: int, uid: int | None = None, most: int = MOST) -> list[str]:
    """The last lines of a file, none where it cannot be read. Of more than `most` bytes only the end is read."""
    found: list[bytes] = []
    try:
        with open_log(path, uid) as file:
            size = os.fstat(file.fileno()).st_size
            block = min(BLOCK, most)
            while lines > 0 and len(found) <= lines:
                file.seek(max(0, size - block))
                found = file.read(block).split(b"\n")
                if block >= min(size, most):
                    break
                block = min(8 * block, most)
    except (OSError, GpuleaseError):
        return []
    if found and not found[-1]:
        found.pop()
    return [line.decode(errors="replace") for line in found[-lines:]] if lines > 0 else []


def shown_line(text: str) -> str:
    """One line of a log without anything that drives a terminal; of a bar that is drawn over itself, the last."""
    text = ESCAPES.sub("", text[-4 * LONGEST :]).rstrip("\r").rpartition("\r")[2]
    return clean(text.expandtabs(8))[:LONGEST]
