"""A service of the machine tells systemd when it is ready, and knows the group of its socket."""

from __future__ import annotations

import grp
import os
import socket
from pathlib import Path

import pytest

from gpulease.broker.service import notify_ready, socket_group
from gpulease.errors import UsageError


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_once_and_children_cannot_tell_it(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    name = f"@gpulease-test-{os.getpid()}" if abstract else "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify_ready()
        assert manager.recv(100) == b"READY=1"
        assert "NOTIFY_SOCKET" not in os.environ
        notify_ready()
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(100)


def test_a_manager_that_is_gone_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    notify_ready()


@pytest.mark.parametrize("text", [None, "", '# socket-group = "users"\n'])
def test_without_a_group_everybody_may_come(text: str | None, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    if text is not None:
        config.write_text(text)
    assert socket_group(str(config)) is None


def test_a_group_is_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('socket-group = "daemon"\n')
    assert socket_group(str(tmp_path / "config.toml")) == grp.getgrnam("daemon").gr_gid


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('socket-group = "no-such-group"', "no group 'no-such-group'"),
        ("socket-group = 7", "is 7"),
        ('socket-group = ""', "is ''"),
        ("grace = 1\nsocket-group =\n", "line 2"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_wrong_group_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=said):
        socket_group(str(tmp_path / "config.toml"))
