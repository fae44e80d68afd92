"""A service of the machine tells systemd when it is ready, and knows the group of its socket."""

from __future__ import annotations

import grp
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpulease.broker.config import texts_of
from gpulease.broker.service import LauncherConfig, notify_ready
from gpulease.errors import ConfigError


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


def read(folder: Path) -> LauncherConfig:
    return LauncherConfig.read({"GPULEASE_DIR": str(folder)})


@pytest.mark.parametrize("text", [None, "", '# socket-group = "users"\n', "grace = 1\nroot-jobs = false\n"])
def test_without_a_word_everybody_may_come_and_roots_jobs_are_not_run(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.toml").write_text(text)
    assert read(tmp_path) == LauncherConfig(None, False)


def test_a_simulated_machine_has_no_config_of_the_real_one() -> None:
    assert LauncherConfig.read({"GPULEASE_SIMULATE": "2"}) == LauncherConfig()


def test_what_the_launcher_reads_is_left_to_it_by_the_broker(tmp_path: Path) -> None:
    text = 'socket-group = "daemon"\nroot-jobs = true\n'
    (tmp_path / "config.toml").write_text(text)
    assert read(tmp_path) == LauncherConfig(grp.getgrnam("daemon").gr_gid, True)
    assert texts_of(text, "config.toml") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('socket-group = "no-such-group"', "line 1: There is no group 'no-such-group'"),
        ("# ours\ngrace = 1\nsocket-group = 7\n", "line 3: socket-group is 7"),
        ('socket-group = ""', "is ''"),
        ('\nroot-jobs = "yes"', "line 2: root-jobs is 'yes'"),
        ("grace = 1\nsocket-group =\n", "line 2"),
        ("socket-group", "line 1"),
        ("\udcff", "line 1"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=said):
        read(tmp_path)


def test_the_launchers_part_needs_neither_planner_nor_store() -> None:
    """Root reads it: what is loaded for it is what must be trusted."""
    program = "import sys, gpulease.broker.service; print(*[name for name in sys.modules if 'gpulease' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if "planner" in name or "stores" in name or "settings" in name] == []
