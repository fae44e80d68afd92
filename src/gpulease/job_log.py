"""Reading what a job wrote: ordinary files only, and never more than was asked for."""

from __future__ import annotations

import os
import stat

from gpulease.errors import GpuleaseError, NotFound, NotPermitted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

SEE_SHOW = "See `gpulease show` for where the output goes."
BLOCK = 1 << 16
MOST = 1 << 20  # bytes of the last lines: one line may be as long as the disk


def open_log(path: str) -> IO[bytes]:
    """Of ordinary files alone: whoever opens a FIFO waits for its writer."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except PermissionError:
        raise NotPermitted(f"The log {path!r} may not be read.", "Ask whoever owns it, or root.") from None
    except OSError as error:
        raise NotFound(f"The log {path!r} cannot be read: {error.strerror}.", SEE_SHOW) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotFound(f"The log {path!r} is no ordinary file, so it is not shown.", SEE_SHOW)
    return open(descriptor, "rb")


def tail(path: str, lines: int, most: int = MOST) -> list[str]:
    """The last lines of a file, none where it cannot be read. Of more than `most` bytes only the end is read."""
    found: list[bytes] = []
    try:
        with open_log(path) as file:
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
