"""A real Redis of a test's own; where there is none to be had, the test is left out."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.needs import program
from support.waiting import wait_until


class RedisServer:
    """On a socket of its own in a short folder, so that no two tests meet; nothing is kept when it ends."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpulease-redis-"))
        self.path = self.folder / "redis.sock"
        self.url = f"unix://{self.path}?db=0"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        words = ["redis-server", "--port", "0", "--unixsocket", str(self.path), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*words, "--dir", str(self.folder), *self._options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._answers)

    def client(self, **more: Any) -> Any:
        import redis

        return redis.Redis(unix_socket_path=str(self.path), decode_responses=True, **more)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()
        self.path.unlink(missing_ok=True)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def close(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        import redis

        try:
            return bool(self.client().ping())
        except redis.AuthenticationError:
            return True
        except redis.RedisError:
            return False


@pytest.fixture(name="server")
def redis_server() -> Iterator[RedisServer]:
    program("redis-server")
    server = RedisServer()
    try:
        yield server
    finally:
        server.close()
