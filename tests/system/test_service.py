"""A service of the machine tells systemd when it is ready, and knows the group of its socket."""

from __future__ import annotations

import grp
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.accounts import SystemSite
from support.other_users import needs_root
from support.site import Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_for_end, wait_until

from gpulease.broker.config import texts_of
from gpulease.errors import ConfigError
from gpulease.system.service import LauncherConfig, Manager


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_and_children_cannot_tell_it(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    name = f"@gpulease-test-{os.getpid()}" if abstract else "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"\0{name[1:]}" if abstract else name)
        manager.settimeout(10)
        environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/bin"}
        reply = Manager(environ)
        assert environ == {"PATH": "/bin"}
        reply.ready()
        reply.alive()
        assert (manager.recv(100), manager.recv(100), reply.patience) == (b"READY=1", b"WATCHDOG=1", 2.0)


def test_a_manager_that_is_gone_or_was_never_there_ends_nothing(tmp_path: Path) -> None:
    for environ in ({"NOTIFY_SOCKET": str(tmp_path / "none")}, {}):
        Manager(environ).ready()


def test_a_watchdog_of_another_process_is_not_fed() -> None:
    assert Manager({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).patience is None


def test_a_broker_that_starts_by_itself_inside_a_service_tells_that_service_nothing(
    site: Site, manager: socket.socket
) -> None:
    assert site.run("run", "--", "true", **watched(manager)).returncode == 0
    pid = site.broker_pid()
    assert "ok" in site.raw().ask("ping")
    assert not select.select([manager], [], [], float(WATCHED))[0], manager.recv(100)
    assert site.broker_pid() == pid


WATCHED = "0.8"  # seconds


@pytest.fixture
def manager(site: Site) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(site.folder / "notify"))
        (site.folder / "notify").chmod(0o666)
        made.settimeout(10)
        yield made


def watched(manager: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": str(round(float(WATCHED) * 1e6))}


def fed(manager: socket.socket, broker: int) -> None:
    """Signs of life come from a broker whose loop turns, and from nobody while it does not."""
    assert manager.recv(100) == b"READY=1"
    assert {manager.recv(100) for _ in range(3)} == {b"WATCHDOG=1"}
    os.kill(broker, signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{broker}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    while select.select([manager], [], [], 0.05)[0]:
        manager.recv(100)  # what it said before
    manager.settimeout(float(WATCHED))
    with pytest.raises(TimeoutError):
        manager.recv(100)
    manager.settimeout(10)


def test_the_loop_of_a_users_broker_feeds_the_watchdog(site: Site, manager: socket.socket) -> None:
    broker = site.start("broker", environ=watched(manager))
    fed(manager, broker.pid)
    os.kill(broker.pid, signal.SIGCONT)
    assert manager.recv(100) == b"WATCHDOG=1"


@needs_root
def test_the_loop_of_the_systems_broker_feeds_it_and_a_stuck_one_is_ended() -> None:
    site = SystemSite()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(site.folder / "notify"))
            manager.settimeout(10)
            launcher = site.start_broker(None, **watched(manager))
            broker = site.ask("ping")["pid"]
            fed(manager, broker)
            launcher.send_signal(signal.SIGABRT)  # as systemd does then
            assert launcher.wait(30) != 0
            wait_for_end(broker)
    finally:
        site.close()


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
    program = "import sys, gpulease.system.service; print(*[name for name in sys.modules if 'gpulease' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [name for name in done.stdout.split() if "planner" in name or "store" in name or "settings" in name] == []
