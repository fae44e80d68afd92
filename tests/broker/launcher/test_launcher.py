"""Whatever the broker says, the launcher proves only who came to the broker's own socket, and still is who came."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.other_users import needs_root

from gpulease.broker.launcher.__main__ import Launcher
from gpulease.broker.launcher.privileges import SO_PEERPIDFD
from gpulease.system.service import Manager

pytestmark = needs_root
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")


class Door:
    """The broker's socket, and the launcher behind it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "socket")
        self.listener = listening(self.path)
        self.launcher = Launcher(socket.socketpair()[0], self.path, str(folder / "known"), True, Manager({}))

    def accept(self) -> socket.socket:
        return self.listener.accept()[0]

    def prove(self, connected: socket.socket) -> str | None:
        return self.launcher._prove(connected.fileno())


def listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    return listener


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    door = Door(tmp_path)
    yield door
    door.listener.close()


def test_who_came_is_proven(door: Door) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(door.path)
        with door.accept() as connected:
            assert door.prove(connected) is None


def test_whoever_listens_somewhere_has_not_come(door: Door, tmp_path: Path) -> None:
    """A broker that was taken over could bind the name in a namespace of its own, and connect to a user's program."""
    os.unlink(door.path)
    with listening(str(tmp_path / "program")), socket.socket(socket.AF_UNIX) as forged:
        forged.bind(door.path)
        forged.connect(str(tmp_path / "program"))
        assert door.prove(forged) == "It did not come through the broker's socket."
    with socket.socketpair()[0] as forged:
        assert door.prove(forged) == "It did not come through the broker's socket."


def test_another_process_under_the_pid_of_who_came_proves_nothing(door: Door) -> None:
    """Else whoever is in a sandbox could connect, end, and have its number given to one that is free."""
    maker = os.fork()
    if maker == 0:
        socket.socket(socket.AF_UNIX).connect(door.path)
        os._exit(0)
    connected = door.accept()
    os.waitpid(maker, 0)
    try:
        os.close(connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
    except OSError:
        pytest.skip("this kernel does not tell")
    impostor = fork_as(maker)
    try:
        refused = door.prove(connected)
    finally:
        os.kill(impostor, 9)
        os.waitpid(impostor, 0)
    assert refused == "The process ended before the launcher knew whose it is."


def fork_as(wanted: int) -> int:
    """A process of that number, which lives until it is killed."""
    for _ in range(200):
        try:
            LAST_PID.write_text(str(wanted - 1))
        except OSError:
            pytest.skip("pids cannot be chosen here")
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
            os._exit(0)
        if pid == wanted:
            return pid
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    pytest.skip("the pid was always somebody else's")
