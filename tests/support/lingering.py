"""A descriptor that nobody can close quickly: whoever drops its last copy waits."""

from __future__ import annotations

import contextlib
import socket
import struct


def lingering(seconds: int) -> tuple[socket.socket, socket.socket]:
    """A connection with more in it than fits, which its end waits for that long; and the end that does not read it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        deaf, _ = server.accept()
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 16))
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return one, deaf
