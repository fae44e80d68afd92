"""The client where brokers come and go, or are too busy to let it in."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here

from gpulease.client import Client, _enter


def test_a_broker_that_ends_before_it_is_asked_is_noticed_as_its_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPULEASE_DIR", site.directory)
    site.ensure_broker()
    client = Client(directory=site.directory)
    site.kill_broker()
    client.send("status")  # no BrokenPipeError: a command would take that for its reader's end
    with pytest.raises(ConnectionResetError):
        client.receive(30)


def test_a_full_waiting_room_is_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(path)
        listener.listen(0)
        first.connect(path)
        with socket.socket(socket.AF_UNIX) as second:
            second.setblocking(False)
            with pytest.raises(BlockingIOError):
                second.connect(path)
        later = threading.Timer(0.2, listener.accept)
        later.start()
        third = socket.socket(socket.AF_UNIX)
        _enter(third, path)
        later.join()
        third.close()
