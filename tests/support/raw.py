"""The broker's socket without a client: for what a client never does."""

from __future__ import annotations

import socket
import time
from typing import Any

from gpulease.protocol.wire import Message, Unpacker, pack

PATIENCE = 40.0


class Raw:
    """One connection, spoken to in messages or in bytes."""

    def __init__(self, directory: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(f"{directory}/socket")  # without a timeout: with one, a full backlog is an error at once
        self.socket.settimeout(PATIENCE)
        self._unpacker = Unpacker(16 << 20)
        self._messages: list[Message] = []

    def send(self, verb: str, **fields: Any) -> None:
        self.socket.sendall(pack({"v": 1, "do": verb, **fields}))

    def receive(self, timeout: float = PATIENCE) -> Message:
        """The next message, whatever it says. ConnectionError when the broker has closed."""
        until = time.monotonic() + timeout
        while not self._messages:
            self.socket.settimeout(max(0.001, until - time.monotonic()))
            data = self.socket.recv(1 << 20)
            if not data:
                raise ConnectionResetError
            self._messages += self._unpacker.feed(data)
        return self._messages.pop(0)

    def ask(self, verb: str, **fields: Any) -> Message:
        self.send(verb, **fields)
        return self.receive()

    def acquire(self, gpus: int = 1, wait: float | None = None, **more: Any) -> None:
        self.send("acquire", request={"gpus": gpus}, kind="acquire", wait=wait, **more)

    def granted(self) -> Any:
        """The lease, once it is granted: where the driver takes its time, the broker says first that one waits."""
        while "granted" not in (reply := self.receive()):
            assert "waiting" in reply, reply
        return reply["granted"]

    def closed(self) -> bool:
        """Waits for the other end to close, past whatever it still says."""
        try:
            while True:
                self.receive()
        except ConnectionError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
