"""Hosts that vanish, hang and come back: what is said, and how long anybody waits for them."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.machine import listener_at
from support.ssh_hosts import SshHosts, three_hosts  # noqa: F401  # pytest finds the fixture here
from support.waiting import PATIENCE, read_terminal, wait_until


def started(hosts: SshHosts, gate: Path) -> str:
    """A job on gpu2 that runs until `gate` is there."""
    script = f"echo began; until test -e {gate}; do sleep 0.05; done; echo over"
    id = hosts.run("add", "--host", "gpu2", "--", "sh", "-c", script).stdout.strip()
    wait_until(lambda: "began" in hosts.run("log", id).stdout)
    return id


@pytest.mark.parametrize("verb", ["wait", "log"])
def test_a_lost_connection_is_told_and_the_job_goes_on(hosts: SshHosts, tmp_path: Path, verb: str) -> None:
    id = started(hosts, tmp_path / "gate")
    words = hosts.words(verb, id, *(["-f"] if verb == "log" else []))
    with subprocess.Popen(words, env=hosts.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asked:
        wait_until(lambda: has_session(hosts, f"/gpulease {verb} "))
        hosts["gpu2"].stop()
        _, said = asked.communicate(timeout=PATIENCE)
    hosts["gpu2"].start()
    assert (asked.returncode, said.splitlines()) == (
        69,
        ["gpulease: The connection to gpu2 was lost.", "Jobs there go on. Ask again when gpu2 can be reached."],
    )
    (tmp_path / "gate").touch()
    assert hosts.run("wait", id).returncode == 0


def has_session(hosts: SshHosts, words: str) -> bool:
    """Whether a command with these words, in a session of gpu2's sshd, has reached the broker there."""
    sshd = hosts["gpu2"].process
    assert sshd is not None
    todo = [sshd.pid]
    for pid in todo:
        with suppress(OSError):
            todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                own = [path for path in Path(f"/proc/{pid}/fd").iterdir() if int(path.name) > 2]
                return any(os.readlink(path).startswith("socket:") for path in own)
    return False


def test_a_lost_connection_is_told_on_a_terminal_too(hosts: SshHosts) -> None:
    pid, terminal = pty.fork()
    if not pid:
        words = hosts.words("run", "-q", "--host", "gpu2", "--", "sh", "-c", "echo ready; exec sleep 600")
        os.execve(words[0], words, {**hosts.environ, "TERM": "dumb"})
    try:
        read_terminal(terminal, b"ready\r\n")
        hosts["gpu2"].stop()
        assert b"The connection to gpu2 was lost." in read_terminal(terminal, b"was lost.")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 69
    finally:
        os.close(terminal)
        hosts["gpu2"].start()


def test_255_is_a_commands_own_exit_code_while_the_connection_is_there(hosts: SshHosts) -> None:
    done = hosts.run("run", "-q", "--host", "gpu2", "--", "sh", "-c", "exit 255")
    assert (done.returncode, done.stderr) == (255, "")


def test_a_host_that_hangs_is_waited_for_once_and_is_back_as_soon_as_it_answers(hosts: SshHosts) -> None:
    assert hosts.run("status", "--hosts").returncode == 0  # connections are open
    hosts["gpu3"].freeze()
    short = {"GPULEASE_HOST_TIMEOUT": "10"}
    try:
        first = time.monotonic()
        row = json.loads(hosts.run("status", "--hosts", "--json", environ={"GPULEASE_HOST_TIMEOUT": "1"}).stdout)[
            "hosts"
        ][2]
        assert row["trouble"] == "gpu3 does not answer."
        assert abs(row["absent_since"] - time.time()) < 60
        waited = time.monotonic() - first
        second = time.monotonic()
        shown = hosts.run("status", "--hosts", environ=short)
        assert "Silent for " in shown.stdout
        done = hosts.run("run", "-q", "--host", "any", "--", "true", environ=short)
        assert (done.returncode, "gpu3 does not answer." in done.stderr) == (0, True)
        assert (waited >= 1, time.monotonic() - second < 10) == (True, True)
        reply = hosts.run("doctor", "--hosts", environ={"GPULEASE_HOST_TIMEOUT": "1"}).stdout
        assert "gpu3 does not answer. Silent for" in " ".join(reply.split())
    finally:
        hosts["gpu3"].freeze(signal.SIGCONT)
    assert hosts.json("status", "--hosts")["hosts"][2]["absent_since"] is None


def test_a_broker_that_is_stopped_is_told_of_in_time(hosts: SshHosts) -> None:
    """On its own host, and so by ssh too: it takes connections, and reads nothing."""
    hosts.run("--host", "gpu1", "set", "grace")
    broker = listener_at(hosts["gpu1"].directory)
    assert broker is not None
    program = "import gpulease.client.connection as client; client.CHECK = client.READ_ONLY = 0.5\n"
    program += "from gpulease.cli.main import main; main(['add', '--', 'true'])"
    environ = {
        **hosts.environ,
        "GPULEASE_DIR": hosts["gpu1"].directory,
        "GPULEASE_SIMULATION": str(hosts["gpu1"].folder / "machine"),
    }
    os.kill(broker, signal.SIGSTOP)
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=PATIENCE
        )
    finally:
        os.kill(broker, signal.SIGCONT)
    assert "does not answer." in done.stderr
