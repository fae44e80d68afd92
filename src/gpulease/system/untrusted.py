"""What a stranger may send over a Unix socket: bytes, and descriptors that nobody asked for.

Whoever closes a copy of such a descriptor, the last one or not, waits for as long as its sender likes: a socket may
linger for days, and a file system that a user serves is asked at each close and may never answer. So nothing that came
from a stranger is ever opened here. What comes is looked at before it is taken, and a connection with a descriptor in
it is given to a child as it is. The child ends, and the kernel drops what was never opened without asking anybody.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time

MOST = 1 << 16  # bytes
PAUSE = 0.1  # seconds between two children
HELD = 64  # connections, more of which do not wait for that

_held: list[int] = []
_last = float("-inf")


def receive(one: socket.socket, size: int) -> bytes:
    """As `recv`. Nobody honest sends descriptors: what comes with some is not read, as if it had ended."""
    _inline(one)
    data, _, flags, _ = one.recvmsg(size, 0, socket.MSG_PEEK)
    if flags & socket.MSG_CTRUNC:
        return b""
    return one.recv(len(data)) if data else data


def close(one: socket.socket) -> None:
    """What was sent and not read would be closed with it."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)  # from now on nothing comes
        while receive(one, MOST):
            pass
        if one.recv(1, socket.MSG_PEEK):
            return _drop(one.detach())
    return one.close()


def close_listener(one: socket.socket) -> None:
    """With those who wait before it, who may have sent something already."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RD)  # from now on nobody comes
        while True:
            close(one.accept()[0])
    one.close()


def _inline(one: socket.socket) -> None:
    """An urgent byte comes in its turn: else the kernel drops it unseen while we read, with the descriptors in it."""
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)


def _drop(connection: int) -> None:
    global _last
    _held.append(connection)
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
