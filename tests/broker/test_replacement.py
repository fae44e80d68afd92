"""A broker that runs is replaced, one of the version before too, with nothing lost on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import landed
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import HOLD, Site, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until


def replacement(queue: QueueSite) -> subprocess.Popen[str]:
    before = queue.broker_pid()
    process = queue.start("broker", "--replace")
    wait_until(lambda: queue.broker_pid() == process.pid)
    assert before != process.pid
    return process


class Load:
    """A holder, a waiter, a running and a waiting job: what must not be lost."""

    def __init__(self, queue: QueueSite, **environ: str) -> None:
        self.queue, self.flag = queue, queue.folder / "flag"
        words = queue.words("run", "-n", "2", "--", sys.executable, "-c", HOLD)
        self.holder = queue.popen(words, environ=environ)
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "ready\n"
        self.running = queue.shell(f"while ! [ -e {self.flag} ]; do sleep 0.05; done; exit 3", {"gpus": 2})
        queue.until(self.running, "running")
        words = queue.words("run", "-n", "4", "--priority", "1", "--", "echo", "granted")
        self.waiter = queue.popen(words, environ=environ)
        wait_until(lambda: len(queue.ask("status")["line"]) == 1)
        self.waiting = queue.submit("true", request={"gpus": 4})

    def goes_on(self) -> None:
        reply = self.queue.ask("status")
        assert {lease["pid"] for lease in reply["leases"] if lease["kind"] == "run"} == {self.holder.pid}
        assert [len(row["why"]) > 0 for row in reply["line"]] == [True, True]
        self.flag.touch()
        assert self.queue.until(self.running, "failed")["exit_code"] == 3
        assert self.waiter.poll() is None
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        assert self.waiter.stdout is not None
        assert self.waiter.stdout.read() == "granted\n"
        assert self.waiter.wait() == 0
        self.queue.until(self.waiting, "complete")


def test_a_broker_is_replaced_and_nothing_is_lost(queue: QueueSite) -> None:
    load = Load(queue)
    replacement(queue)
    load.goes_on()


def test_without_a_broker_to_replace_it_just_starts(site: Site) -> None:
    process = site.start("broker", "--replace")
    wait_until(lambda: site.broker_pid() == process.pid)


def test_a_broker_of_an_earlier_version_is_replaced_with_its_clients_and_jobs() -> None:
    queue = QueueSite()
    try:
        environ = landed.sources(queue.folder / "landed")
        broker = queue.start("broker", environ=environ)
        wait_until(lambda: queue.broker_pid() == broker.pid)
        load = Load(queue, **environ)
        replacement(queue)
        assert broker.wait() == 0
        load.goes_on()
    finally:
        queue.close()


@pytest.mark.parametrize("who", ["the one before", "the one after"])
def test_either_side_may_be_killed_while_it_is_replaced(queue: QueueSite, who: str) -> None:
    load = Load(queue)
    before = queue.broker_pid()
    assert before is not None
    os.kill(before, signal.SIGSTOP)  # it hears of the replacement, and cannot end yet
    after = queue.start("broker", "--replace")
    wait_until(lambda: f"{queue.directory}/socket" in Path("/proc/net/unix").read_text() and _connected(after.pid))
    if who == "the one before":
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: queue.broker_pid() == after.pid)
    else:
        after.kill()
        after.wait()
        os.kill(before, signal.SIGCONT)
        replacement(queue)  # whether the one before was told to stop already or not
    load.goes_on()


def _connected(pid: int) -> bool:
    """Whether the process has a socket open, which it waits at."""
    try:
        return any(os.readlink(entry).startswith("socket:") for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
