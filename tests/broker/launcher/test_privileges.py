"""A system broker without privileges: who runs what, what the launcher refuses, and what jobs do not inherit."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.accounts import BROKER, GROUP, SystemSite, system_site  # noqa: F401  # pytest finds the fixture here
from support.other_users import needs_root
from support.queue_site import alive, pick
from support.waiting import wait_until

from gpulease.broker.launcher import privileges
from gpulease.broker.launcher.__main__ import Launcher
from gpulease.system.service import Manager

pytestmark = needs_root
PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP, CAP_NET_RAW = 38, 24, 13


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def broker_of(site: SystemSite) -> int:
    """The process that plans, as it says itself."""
    pid = site.ask("ping")["pid"]
    assert isinstance(pid, int)
    return pid


# -------------------------------------------------------------------- who runs as whom


def test_the_broker_that_reads_strangers_messages_has_no_privileges(system: SystemSite) -> None:
    seen = privileges.status(broker_of(system))
    assert seen["Uid"].split() == [str(BROKER)] * 4
    assert {int(seen[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}


def test_the_launcher_keeps_few_capabilities_and_no_descriptor_of_the_store(system: SystemSite) -> None:
    launcher = system.broker_pid()
    assert launcher is not None
    few = int(privileges.status(launcher)["CapPrm"], 16)
    assert few.bit_count() <= 6
    opened = [os.readlink(f"/proc/{launcher}/fd/{name}") for name in os.listdir(f"/proc/{launcher}/fd")]
    assert not [path for path in opened if "state.db" in path]


def test_the_launcher_loads_neither_planner_nor_wire_nor_store() -> None:
    code = "import sys, gpulease.broker.launcher; print(*(n for n in sys.modules if n.startswith('gpulease')))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    kept_out = ("gpulease.planner", "gpulease.protocol", "gpulease.broker.store", "gpulease.broker.core")
    assert not [name for name in loaded if name.startswith(kept_out)]
    assert not {"gpulease.model.jobs", "gpulease.model.values"} & set(loaded)


# -------------------------------------------------------------------- who is refused


def refused_by(site: SystemSite, before: Any, user: Any = None) -> str:
    """What a user is told who adds a job after `before`."""

    def add() -> Any:
        before()
        with site.raw() as raw:
            options = {"cwd": "/", "environment": {"PATH": "/bin"}}
            return raw.ask("add", request={}, options=options, commands=[["true"]])

    reply = site.as_user(user or site.alice, add)
    assert reply["error"]["code"] == "not-permitted", reply
    return str(reply["error"]["what"])


def prctl(*words: int) -> None:
    assert ctypes.CDLL(None).prctl(*words, 0, 0) == 0


def test_a_job_does_not_leave_the_sandbox_of_its_submitter(system: SystemSite) -> None:
    """Before, a job shed no_new_privs and the namespaces of whoever submitted it."""
    assert "sandbox" in refused_by(system, lambda: prctl(PR_SET_NO_NEW_PRIVS, 1, 0))

    def unshare() -> None:
        assert ctypes.CDLL(None).unshare(0x10000000) == 0  # a user namespace

    assert "namespace" in refused_by(system, unshare) or "capabilities" in refused_by(system, unshare)


def test_who_has_fewer_capabilities_gets_no_job_with_more(system: SystemSite) -> None:
    launcher = system.broker_pid()
    assert launcher is not None
    words = system.namespace.words(
        "setpriv", "--bounding-set", "-net_raw", "--reuid", str(system.alice.pw_uid), "--regid",
        str(system.alice.pw_gid), "--clear-groups", system.python_of_all, "-m", "gpulease", "add", "--", "true",
    )  # fmt: skip
    done = subprocess.run(words, env=system.environ, cwd="/", capture_output=True, text=True, timeout=60)
    assert done.returncode == 77, done.stderr
    assert "fewer capabilities" in done.stderr


def test_who_gave_up_groups_gets_no_job_with_them(system: SystemSite) -> None:
    """Its jobs had all groups of the account: `setpriv --clear-groups` was no sandbox."""
    account = ("--reuid", str(system.alice.pw_uid), "--regid", str(system.alice.pw_gid))
    add = (system.python_of_all, "-m", "gpulease", "add", "--", "true")
    reply = {}
    for groups in (("--clear-groups",), ("--groups", str(GROUP)), ("--init-groups",)):
        words = system.namespace.words("setpriv", *account, *groups, *add)
        environ = system.environ
        reply[groups] = subprocess.run(words, env=environ, cwd="/", capture_output=True, text=True, timeout=60)
    assert [done.returncode for done in reply.values()] == [77, 0, 0], reply
    assert "not in all groups of its account, as its jobs would be: team." in reply[("--clear-groups",)].stderr


def test_from_another_mount_namespace_nothing_is_queued(system: SystemSite) -> None:
    with system.raw() as raw:  # root's, of the machine itself
        options = {"cwd": "/", "environment": {}}
        reply = raw.ask("add", request={}, options=options, commands=[["true"]])
    assert "Root's jobs are not run" in reply["error"]["what"]


def test_an_account_without_a_login_runs_no_job(system: SystemSite) -> None:
    """Before, its jobs ran."""
    id = system.add(system.accounts.users["nologin"], "true")["ok"]["first"]
    (job,) = system.end(id)
    assert (job["state"], "may not log in" in job["why"]) == ("invalid", True), job["why"]


def test_jobs_of_an_expired_account_wait_until_it_is_in_order(system: SystemSite) -> None:
    """Before, they ran."""
    id = system.add(system.accounts.users["expired"], "true")["ok"]["first"]
    wait_until(lambda: "PAM refuses" in (system.job(id)["why_waiting"] or ""))
    system.accounts.change("shadow", "19001", "")
    assert system.end(id)[0]["state"] == "complete"


def test_an_account_that_expires_starts_nothing_while_its_agent_lives() -> None:
    """Before, its jobs were started for as long as one of them ran; and none was, after it was in order again."""
    site = SystemSite()
    try:
        site.start_broker(GPULEASE_ACCOUNT_CHECK="0")
        first = site.add(site.alice, "sleep 600")["ok"]["first"]
        site.until(first, "running")
        site.accounts.change("shadow", "alice:*:19000:0:99999:7::", "alice:*:19000:0:99999:7::19001")
        second = site.add(site.alice, "true")["ok"]["first"]
        wait_until(lambda: "PAM refuses" in (site.job(second)["why_waiting"] or ""))
        assert site.job(first)["state"] == "running"
        site.accounts.change("shadow", "alice:*:19000:0:99999:7::19001", "alice:*:19000:0:99999:7::")
        assert site.end(second)[0]["state"] == "complete"
    finally:
        site.close()


def test_an_account_in_order_again_starts_jobs_while_an_old_one_runs() -> None:
    """Before, what was found out when the agent was started counted for as long as one of its jobs ran."""
    site = SystemSite()
    try:
        broker = site.start_broker(GPULEASE_ACCOUNT_CHECK="0")
        first = site.add(site.alice, "sleep 600")["ok"]["first"]
        site.until(first, "running")
        site.accounts.change("shadow", "alice:*:19000:0:99999:7::", "alice:*:19000:0:99999:7::19001")
        broker.terminate()
        broker.wait()
        site.start_broker(GPULEASE_ACCOUNT_CHECK="0")
        wait_until(lambda: site.job(first)["pid"] is not None and agents_of(site))
        second = site.add(site.alice, "true")["ok"]["first"]
        wait_until(lambda: "PAM refuses" in (site.job(second)["why_waiting"] or ""))
        site.accounts.change("shadow", "alice:*:19000:0:99999:7::19001", "alice:*:19000:0:99999:7::")
        assert site.end(second)[0]["state"] == "complete"
        assert site.job(first)["state"] == "running"
    finally:
        site.close()


@pytest.mark.parametrize("gone", ["account", "login", "home"])
def test_what_runs_is_ended_whatever_became_of_its_user(system: SystemSite, gone: str) -> None:
    """A user without an agent kept their jobs, and their GPUs, for ever, whatever root said."""
    system.ask("set", name="grace", value="0.2")
    id = system.add(system.alice, "sleep 600")["ok"]["first"]
    shell = system.until(id, "running")["pid"]
    if gone == "account":
        system.accounts.change("passwd", "alice:", "nobody-any-more:")
        system.accounts.change("passwd", ":62001:", ":62099:")
    elif gone == "login":
        system.accounts.change("shadow", "alice:*:19000:0:99999:7:::", "alice:*:19000:0:99999:7::19001:")
    else:
        Path(system.alice.pw_dir, ".local").rename(Path(system.alice.pw_dir, "away"))
        Path(system.alice.pw_dir, ".local").touch()
    (agent,) = agents_of(system)
    os.kill(agent, signal.SIGKILL)
    system.act("kill", id)
    assert system.end(id)[0]["state"] == "killed"
    wait_until(lambda: not alive(shell))


def test_limits_of_pam_are_the_jobs(system: SystemSite) -> None:
    limits = system.folder / "etc" / "limits.conf"
    limits.write_text("alice hard nofile 77\nalice soft nofile 77\n")
    subprocess.run(system.namespace.words("mount", "--bind", str(limits), "/etc/security/limits.conf"), check=True)
    id = system.add(system.alice, "ulimit -n")["ok"]["first"]
    system.end(id)
    assert system.output(id) == "77\n"


WITH_KEY = """
import ctypes, os, sys
call = ctypes.CDLL(None).syscall
assert call(250, 1, None) > 0  # a session keyring of one's own
assert call(248, b"user", b"gpulease-test", b"SECRET", 6, -3) > 0
os.execv(sys.argv[1], sys.argv[1:])
"""
FIND_KEY = "import ctypes; print(ctypes.CDLL(None).syscall(250, 10, -3, b'user', b'gpulease-test', 0))"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of system calls are another machine's")
def test_roots_keys_are_not_the_jobs() -> None:
    """Before, a job possessed the session keyring of whoever had started the broker, and could read its keys."""
    site = SystemSite()
    try:
        words = [*site.namespace.words(site.python_of_all, "-c", WITH_KEY), site.python_of_all]
        find = subprocess.run([*words, "-c", FIND_KEY], capture_output=True, text=True, check=True)
        assert int(find.stdout) > 0, "the test itself can find it"
        site.start_broker(before=words[:-1])
        id = site.add(site.alice, f"{site.python_of_all} -c {shlex.quote(FIND_KEY)}")["ok"]["first"]
        site.end(id)
        assert site.output(id) == "-1\n"
    finally:
        site.close()


# -------------------------------------------------------------------- what a broker that was taken over can do


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[socket.socket, Launcher, str]]:
    """A launcher's end of the door, in this process; and the path of a socket that is the broker's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = str(tmp_path / "s")
    with ours, theirs:
        yield ours, Launcher(theirs, path, str(tmp_path / "users"), False, Manager({})), path


def obey(link: tuple[socket.socket, Launcher, str], message: dict[str, Any], *descriptors: int) -> None:
    ours, launcher, _ = link
    socket.send_fds(ours, [json.dumps(message).encode()], list(descriptors))
    ours.shutdown(socket.SHUT_WR)
    launcher.serve()


def test_a_socket_of_somebody_elses_proves_nothing(link: tuple[socket.socket, Launcher, str], tmp_path: Path) -> None:
    """Else a broker could connect to any of root's sockets and pass for root."""
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as connected:
        listener.bind(str(tmp_path / "roots"))
        listener.listen()
        connected.connect(str(tmp_path / "roots"))
        obey(link, {"do": "prove"}, connected.fileno())
    assert "did not come through" in json.loads(link[0].recv(1000))["refused"]
    assert not (tmp_path / "users").exists()


@pytest.mark.parametrize("uid", [0, 1, 62001])
def test_no_agent_is_started_for_whom_the_kernel_did_not_name(
    link: tuple[socket.socket, Launcher, str], uid: int
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        obey(link, {"do": "agent", "uid": uid}, theirs.fileno())
        theirs.close()
        assert b"refused" in ours.recv(1000)


@pytest.mark.parametrize("known", [False, True])
def test_no_signal_reaches_a_process_of_somebody_else(
    link: tuple[socket.socket, Launcher, str], tmp_path: Path, known: bool
) -> None:
    bystander = subprocess.Popen(["sleep", "600"])
    if known:
        link[1]._proven.add(62001)
    try:
        start = int(Path(f"/proc/{bystander.pid}/stat").read_text().rpartition(")")[2].split()[19])
        reply = {"do": "signal", "uid": 62001, "pid": bystander.pid, "start": start, "number": signal.SIGKILL}
        obey(link, reply)
        assert alive(bystander.pid)
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("pid", [-1, 0, 1])
def test_no_signal_reaches_everybody(link: tuple[socket.socket, Launcher, str], pid: int) -> None:
    link[1]._proven.add(0)
    obey(link, {"do": "signal", "uid": 0, "pid": pid, "start": 0, "number": signal.SIGKILL})


def test_nonsense_is_refused_and_the_launcher_goes_on(link: tuple[socket.socket, Launcher, str]) -> None:
    ours, launcher, _ = link
    for text in (
        b"",
        b"{",
        b"[]",
        b'{"do": 7}',
        b'{"do": "agent"}',
        b'{"do": "agent", "uid": "x"}',
        b'{"do": "prove"}',
    ):
        if text:
            ours.send(text)
    ours.shutdown(socket.SHUT_WR)
    launcher.serve()


# -------------------------------------------------------------------- processes of a job


def test_a_setuid_child_of_a_job_is_not_signalled(system: SystemSite) -> None:
    """Before, its user's kill and pause reached root's processes."""
    program = system.folder / "setuid-sleep"
    source = Path("/bin/sleep").read_bytes()
    program.write_bytes(source)
    program.chmod(0o4755)
    system.ask("set", name="grace", value="0.2")
    id = system.add(system.alice, f"{program} 600 & echo $!; wait")["ok"]["first"]
    child = int(system.said(id, "\n"))
    try:
        wait_until(lambda: privileges.status(child)["Uid"].split()[1] == "0")
        system.told(system.alice, "kill", select=pick(id))
        assert system.end(id)[0]["state"] == "killed"
        assert alive(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_stopped_agent_is_replaced_and_its_users_job_ends(system: SystemSite) -> None:
    """A user who stops their agent would keep their jobs, and their GPUs, for ever."""
    id = system.add(system.alice, "while ! [ -e go ]; do sleep 0.05; done", cwd=str(system.folder))["ok"]["first"]
    system.until(id, "running")
    (agent,) = agents_of(system)
    os.kill(agent, signal.SIGSTOP)
    (system.folder / "go").touch()
    (job,) = system.end(id)
    assert (job["state"], job["exit_code"]) == ("complete", 0)
    wait_until(lambda: not alive(agent))


def test_an_agent_that_is_killed_loses_nothing(system: SystemSite) -> None:
    id = system.add(system.alice, "while ! [ -e go ]; do sleep 0.05; done; exit 5", cwd=str(system.folder))
    number = id["ok"]["first"]
    system.until(number, "running")
    (agent,) = agents_of(system)
    os.kill(agent, signal.SIGKILL)
    (system.folder / "go").touch()
    (job,) = system.end(number)
    assert (job["state"], job["exit_code"], job["tries"]) == ("failed", 5, 1)


def agents_of(site: SystemSite) -> list[int]:
    launcher = site.broker_pid()
    assert launcher is not None
    words = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children(launcher)}
    return [pid for pid, command in words.items() if b"gpulease.broker.agent" in command]
