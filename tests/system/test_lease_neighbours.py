"""safe-gpu's users and ours never choose at the same moment: its lock is held while the broker chooses.

The lock is one file of the whole machine, so these tests take turns by a lock of their own.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.broker.neighbours import FOLDER, NAME, SafeGpuLock

HOLD_LOCK = """
import fcntl, os, sys
before = os.umask(0)
os.makedirs(sys.argv[1], exist_ok=True)
lock = os.open(os.path.join(sys.argv[1], sys.argv[2]), os.O_RDWR | os.O_CREAT, 0o666)
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def somebody_chooses(site: Site) -> Iterator[subprocess.Popen[str]]:
    """A process that holds safe-gpu's lock, as safe-gpu does while it looks and takes. Nobody waits for it long."""
    process = site.python(HOLD_LOCK, FOLDER, NAME)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def _one_at_a_time() -> Iterator[None]:
    with open("/tmp/gpulease-test-neighbours.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_while_a_neighbour_chooses_nothing_is_granted_and_the_reason_says_so(site: Site) -> None:
    site.ensure_broker()
    site.status()
    with somebody_chooses(site):
        refused = site.run("run", "--no-wait", "--", "true")
        waiting = site.start("run", "--", "echo", "mine")
        assert waiting.stderr is not None
        assert "safe-gpu" in waiting.stderr.readline()
        assert waiting.poll() is None
    assert refused.returncode == 75
    assert "safe-gpu" in refused.stderr
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_a_short_choice_of_a_neighbour_is_waited_for_even_without_wait(site: Site) -> None:
    site.ensure_broker()
    site.status()
    with somebody_chooses(site) as neighbour:
        asking = site.raw()
        asking.acquire(1, 0)
        assert site.raw().ask("ping")  # it has been read
        neighbour.kill()
        assert "granted" in asking.receive()


def test_the_broker_lets_go_of_the_lock_when_it_has_chosen(site: Site) -> None:
    site.holder()
    with somebody_chooses(site):
        assert devices_of(site, "leased") == [0]
        assert site.run("release", "0").returncode == 0


def test_the_lock_is_held_while_the_broker_looks(site: Site) -> None:
    """The look is made slow; during it the lock cannot be had, afterwards it can."""
    site.ensure_broker()
    site.status()
    site.set("fault.slow=100")
    taking = site.start("run", "--", "true")
    other = SafeGpuLock()

    def refused() -> bool:
        taken = other.take()
        other.give()
        return not taken

    wait_until(refused)
    assert taking.wait(60) == 0
    site.set("fault.slow=0")
    wait_until(lambda: not refused())


def test_a_lock_file_that_was_removed_is_made_again(tmp_path: os.PathLike[str]) -> None:
    folder = os.path.join(tmp_path, "safe_gpu")
    lock = SafeGpuLock(folder)
    assert lock.take()
    lock.give()
    os.unlink(os.path.join(folder, NAME))
    assert lock.take()
    words = [sys.executable, "-c", HOLD_LOCK.replace("LOCK_EX", "LOCK_EX | fcntl.LOCK_NB"), folder, NAME]
    assert subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL).returncode != 0
    lock.give()


def test_a_lock_that_is_a_link_or_no_file_is_not_touched(tmp_path: os.PathLike[str]) -> None:
    folder, target = os.path.join(tmp_path, "safe_gpu"), os.path.join(tmp_path, "target")
    os.mkdir(folder)
    os.symlink(target, os.path.join(folder, NAME))
    lock = SafeGpuLock(folder)
    assert lock.take()
    assert not os.path.exists(target)
    os.unlink(os.path.join(folder, NAME))
    os.mkfifo(os.path.join(folder, NAME))
    lock = SafeGpuLock(folder)
    assert lock.take()
    lock.give()
