"""What a stranger may send over a Unix socket: bytes, and descriptors that nobody asked for.

Dropping the last copy of a descriptor waits until it is closed, and that takes as long as its sender likes: a
socket may linger for days, a file system may never answer. So nothing that came from a stranger is closed here. A
child inherits it and ends, and whatever its end waits for keeps nobody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from array import array

ROOM = socket.CMSG_SPACE(253 * 4)  # a message has no more (SCM_MAX_FD)
MOST = 1 << 16  # bytes
PAUSE = 0.1  # seconds between two children
HELD = 64  # descriptors, more of which do not wait for that

_held: list[int] = []
_last = float("-inf")


def receive(one: socket.socket, size: int) -> bytes:
    """As `recv`. Nobody honest sends descriptors: after some nothing more is read, as if it had ended."""
    data, sent, _, _ = one.recvmsg(size, ROOM, socket.MSG_CMSG_CLOEXEC)
    if not sent:
        return data
    _drop([number for _, _, numbers in sent for number in array("i", numbers)])
    return b""


def close(one: socket.socket) -> None:
    """What was sent and not read would be closed with it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)  # from now on nothing comes
        while one.recv(1, socket.MSG_PEEK):
            receive(one, MOST)
    one.close()


def close_listener(one: socket.socket) -> None:
    """With those who wait before it, who may have sent something already."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)  # from now on nobody comes
        while True:
            close(one.accept()[0])
    one.close()


def _drop(descriptors: list[int]) -> None:
    global _last
    _held.extend(descriptors)
    if time.monotonic() - _last < PAUSE and len(_held) < HELD:
        return
    _last, null, child = time.monotonic(), subprocess.DEVNULL, None
    with contextlib.suppress(OSError):  # where there is no child, this process waits
        child = subprocess.Popen(
            ["/bin/sh", "-c", "read ended"], stdin=subprocess.PIPE, stdout=null, stderr=null, cwd="/", pass_fds=_held
        )
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()
    if child is not None and child.stdin is not None:
        child.stdin.close()  # now it has the last copies, and ends
        child.returncode = 0  # keeps Popen from waiting for it
