"""`gpulease install --system` on a machine, in a mount namespace: the account, the owners, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest
from support.open_python import ANYBODY
from support.other_users import needs_root
from support.own_etc import OwnEtc
from support.users import becoming
from support.waiting import PATIENCE, wait_until

pytestmark = needs_root


@pytest.fixture(scope="module", name="shared")
def one_machine() -> Iterator[OwnEtc]:
    machine = OwnEtc()
    yield machine
    machine.close()


@pytest.fixture
def machine(shared: OwnEtc) -> Iterator[OwnEtc]:
    yield shared
    # An account is not removed while a process has its number, and a test beside this one may start such a process.
    wait_until(lambda: shared.run("uninstall", "--system", "--purge", "--force").returncode == 0)
    left = shared.execute("sh", "-c", "find /etc /var/lib /run /usr/local/share -name '*gpulease*'; id gpulease")
    assert left.stdout == ""


def refused(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert [word for word in words if word not in done.stderr] == []


def test_the_account_and_the_owners(machine: OwnEtc) -> None:
    done = machine.run("install", "--system")
    assert done.returncode == 0, done.stderr
    account = machine.execute("getent", "passwd", "gpulease").stdout.strip().split(":")
    assert (account[5], account[6].rpartition("/")[2]) == ("/var/lib/gpulease", "nologin")
    assert 0 < int(account[2]) < 1000
    seen = machine.execute("stat", "-c", "%a %U:%G", "/var/lib/gpulease", "/var/lib/gpulease-launcher", "/etc/gpulease")
    assert seen.stdout.splitlines() == ["700 gpulease:gpulease", "700 root:root", "755 root:root"]
    again = machine.run("install", "--system", "--json")
    reply = json.loads(again.stdout)
    assert (reply["account"], {row["action"] for row in reply["files"]}) == (None, {"none"})


def test_what_to_run_next_depends_on_systemd(machine: OwnEtc) -> None:
    done = machine.run("install", "--system")
    command = f"{machine.python} -I -m gpulease broker --system"
    assert "There is no systemd here" in done.stdout
    assert f"@reboot root {command}" in done.stdout
    machine.execute("mkdir", "-p", "/run/systemd/system")
    reply = json.loads(machine.run("install", "--system", "--json").stdout)
    machine.execute("rm", "-r", "/run/systemd")
    assert reply["next"] == ["systemctl daemon-reload", "systemctl enable gpulease", "systemctl restart gpulease"]


def test_only_root_installs_and_everybody_may_try(machine: OwnEtc) -> None:
    words = [*becoming(ANYBODY), machine.python, "-m", "gpulease", "install", "--system"]
    refused(machine.execute(*words), 77, "Only root", "--user")
    refused(machine.execute(*words, "--root", "//"), 77, "Only root")
    assert machine.execute(*words, "--dry-run").returncode == 0


def test_a_group_that_does_not_exist_changes_nothing(machine: OwnEtc) -> None:
    refused(machine.run("install", "--system", "--group", "no-such-group"), 1, "no-such-group", "groupadd")
    assert machine.execute("ls", "/etc/gpulease").returncode != 0


def test_a_python_that_others_cannot_run_is_refused(machine: OwnEtc) -> None:
    closed = machine.make_python("closed")
    (machine.folder / "closed").chmod(0o700)
    refused(machine.run("install", "--system", python=closed), 1, "Other users cannot run", "/opt/gpulease")
    refused(machine.run("install", "--system", "--python", "/no/such/python"), 1, "/no/such/python")


def test_a_python_that_lacks_something_is_refused(machine: OwnEtc) -> None:
    lacking = machine.make_python("lacking")
    next((machine.folder / "lacking").glob("lib/python*/site-packages/pamela.py")).unlink()
    refused(machine.run("install", "--system", python=lacking), 1, "No module named 'pamela'", "gpulease[system]")


def test_a_python_that_others_can_change_is_refused(machine: OwnEtc) -> None:
    """Its code would run as root: installing with sudo from a user's own environment gave that user the machine."""
    theirs = machine.make_python("theirs")
    os.chown(machine.folder / "theirs", ANYBODY, ANYBODY)
    refused(machine.run("install", "--system", python=theirs), 1, f"user {ANYBODY} can change", "/opt/gpulease")
    os.chown(machine.folder / "theirs", 0, 0)
    (machine.folder / "theirs" / "lib").chmod(0o777)
    refused(machine.run("install", "--system", python=theirs), 1, "everybody can change")


def test_a_read_only_etc_is_said(machine: OwnEtc) -> None:
    machine.run("install", "--system")
    machine.execute("rm", "/etc/pam.d/gpulease")
    assert machine.execute("mount", "-o", "remount,bind,ro", "/etc").returncode == 0
    done = machine.run("install", "--system")
    machine.execute("mount", "-o", "remount,bind,rw", "/etc")
    refused(done, 1, "/etc/pam.d/gpulease", "Read-only file system")


def test_uninstall_refuses_while_the_broker_runs(machine: OwnEtc) -> None:
    """Whoever listens at the place of the system's broker; a socket that is left there is no obstacle."""
    assert machine.run("install", "--system").returncode == 0
    listen = (
        "import os, socket, sys; os.mkdir('/run/gpulease'); s = socket.socket(socket.AF_UNIX); s.bind('/run/new'); "
        "s.listen(); os.rename('/run/new', '/run/gpulease/socket'); sys.stdin.read()"
    )
    with machine.started(machine.python, "-c", listen):
        wait_until(lambda: machine.execute("test", "-S", "/run/gpulease/socket").returncode == 0)
        refused(machine.run("uninstall"), 1, "runs", "--force")
        assert machine.run("uninstall", "--dry-run").returncode == 0
        assert machine.execute("test", "-e", "/etc/systemd/system/gpulease.service").returncode == 0
    assert machine.run("uninstall").returncode == 0
    assert machine.execute("test", "-e", "/run/gpulease").returncode != 0


def test_the_units_command_starts_a_broker_that_tells_when_it_is_ready(machine: OwnEtc) -> None:
    """As systemd does it: the words of ExecStart, and a socket that is told when clients may come."""
    assert machine.run("install", "--system", "--group", "daemon").returncode == 0
    unit = machine.execute("cat", "/etc/systemd/system/gpulease.service").stdout
    command = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)[0].split()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(machine.folder / "notify"))
        manager.settimeout(PATIENCE)
        reply = {"NOTIFY_SOCKET": str(machine.folder / "notify"), "GPULEASE_CONFIG": "/etc/gpulease/config.toml"}
        with machine.started(*command, **reply) as process:
            assert manager.recv(100) == b"READY=1"
            seen = machine.execute("stat", "-c", "%a %U:%G", "/run/gpulease/socket")
            assert seen.stdout == "660 root:daemon\n"
            process.send_signal(signal.SIGHUP)  # as ExecReload does
            told_of = machine.run("status", "--json")
            assert json.loads(told_of.stdout)["broker"]["kind"] == "system", told_of.stderr
            assert process.poll() is None


def test_no_users_own_broker_starts_between_boot_and_the_systems_broker(machine: OwnEtc) -> None:
    """After a boot /run is empty, and people log in before the service has made its folder."""
    home = machine.folder / "home"
    home.mkdir(mode=0o700)
    os.chown(home, ANYBODY, ANYBODY)
    environ = [f"HOME={home}", "XDG_RUNTIME_DIR="]

    def user(*words: str) -> subprocess.CompletedProcess[str]:
        return machine.execute(*becoming(ANYBODY), "env", *environ, machine.python, "-m", "gpulease", *words)

    assert machine.run("install", "--system").returncode == 0
    said = ("installed but has not started yet", "systemctl start gpulease")
    for words in (("run", "--no-wait", "--", "true"), ("get", "--for", "1h"), ("add", "--", "true"), ("broker",)):
        refused(user(*words), 69, *said)
    assert list(home.iterdir()) == []
    assert machine.run("install", "--system", "--json").returncode == 0
    with machine.started(machine.python, "-I", "-m", "gpulease", "broker", "--system"):
        wait_until(lambda: machine.execute("test", "-S", "/run/gpulease/socket").returncode == 0)
        granted = user("run", "--", "sh", "-c", "echo got it")
        assert granted.stdout == "got it\n", granted.stderr
    refused(user("run", "--no-wait", "--", "true"), 69, "is down")
    machine.execute("rm", "-r", "/run/gpulease")
    refused(user("run", "--no-wait", "--", "true"), 69, *said)
    environ.append(f"GPULEASE_DIR={home}/own")
    isolated = user("ls")
    assert "has not started yet" not in isolated.stderr
    environ.pop()
    assert machine.run("uninstall", "--system").returncode == 0
    own = user("run", "--no-wait", "--", "true")  # its own broker starts, and finds no GPU
    assert "has not started yet" not in own.stderr
    assert (home / ".local" / "state" / "gpulease").exists()
    user("stop")
