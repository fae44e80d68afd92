"""safe-gpu's users and ours never choose at the same moment: its lock is held while the broker chooses.

Placeholders, and both kinds of users together: test_beside_safe_gpu.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.apart import Apart, apart_site  # noqa: F401
from support.needs import needs_root
from support.site import devices_of
from support.waiting import wait_until

from gpulease.broker.neighbours.safe_gpu import FOLDER, NAME, SafeGpuLock
from gpulease.simulator.folder import simulated_environment
from gpulease.system.identity import user_name

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
def somebody_chooses(site: Apart) -> Iterator[subprocess.Popen[str]]:
    """A process that holds safe-gpu's lock, as safe-gpu does while it looks and takes. Nobody waits for it long."""
    process = site.python(HOLD_LOCK, FOLDER, NAME)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_while_a_neighbour_chooses_nothing_is_granted_and_the_reason_says_so(site: Apart) -> None:
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


def test_who_keeps_the_lock_is_named_and_passed_by(site: Apart) -> None:
    """Any user can hold it; before, nobody was granted anything until it let go."""
    site.ensure_broker()
    assert site.run("set", "safe-gpu-patience", "0.2s").returncode == 0
    with somebody_chooses(site) as holder:
        done = site.run("run", "--", "echo", "mine")
        assert done.stdout == "mine\n", done.stderr
        reply = site.json("events")["events"]
        status = site.run("status").stdout
    passed = next(event for event in reply if event["what"] == "passed-by")
    assert (passed["user"], passed["pid"]) == (user_name(os.geteuid()), holder.pid)
    assert f"is not waited for now: {passed['user']}" in status


def test_doctor_names_whoever_keeps_the_lock(site: Apart) -> None:
    assert "safe-gpu" not in site.run("doctor").stdout
    with somebody_chooses(site):
        done = site.run("doctor")
    assert "holds its lock for more than 1 s" in done.stdout
    assert done.returncode == 0


def test_a_short_choice_of_a_neighbour_is_waited_for_even_without_wait(site: Apart) -> None:
    site.ensure_broker()
    site.status()
    with somebody_chooses(site) as neighbour:
        asking = site.raw()
        asking.acquire(1, 0)
        assert site.raw().ask("ping")  # it has been read
        neighbour.kill()
        assert "granted" in asking.receive()


def test_the_broker_lets_go_of_the_lock_when_it_has_chosen(site: Apart) -> None:
    site.holder()
    with somebody_chooses(site):
        assert devices_of(site, "leased") == [0]
        assert site.run("release", "0").returncode == 0


def test_the_lock_is_held_while_the_broker_looks(site: Apart) -> None:
    """The look is made to last; during it the lock cannot be had, afterwards it can."""
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    site.ensure_broker()
    site.status()
    site.set("fault.hang=1")
    other = SafeGpuLock(str(site.lock_folder))
    assert other.take()
    other.give()
    taking = site.start("run", "--", "true")

    def refused() -> bool:
        taken = other.take()
        other.give()
        return not taken

    wait_until(refused)
    assert taking.poll() is None
    site.set("fault.hang=0")
    assert taking.wait(60) == 0
    wait_until(lambda: not refused())


TRY_LOCK = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)  # the file that is there now; none is made
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("taken")
except BlockingIOError:
    print("refused")
"""


def newcomer(folder: Path) -> str:
    """What happens to a process that asks for the lock now: `taken` or `refused`. Anything else is an error."""
    words = [sys.executable, "-c", TRY_LOCK, str(folder / NAME)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.touch()


@pytest.mark.parametrize("change", [remove, replace])
def test_the_lock_is_that_of_the_file_that_a_newcomer_finds(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = tmp_path / "safe_gpu"
    lock = SafeGpuLock(str(folder))
    assert lock.take()
    assert newcomer(folder) == "refused"
    lock.give()
    assert newcomer(folder) == "taken"
    change(folder / NAME)
    assert lock.take()
    assert newcomer(folder) == "refused"
    lock.give()
    assert newcomer(folder) == "taken"


def test_a_lock_that_is_a_link_is_neither_followed_nor_held(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "target")
    lock = SafeGpuLock(str(tmp_path))
    assert lock.take()
    assert not lock.held
    assert not (tmp_path / "target").exists()
    assert "it is a symbolic link" in (lock.trouble or "")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_lock_that_is_no_regular_file_is_not_held(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / NAME)
    lock = SafeGpuLock(str(tmp_path))
    assert lock.take()
    assert not lock.held
    assert "it is not a regular file" in (lock.trouble or "")
    (tmp_path / NAME).rename(tmp_path / "away")
    assert lock.take()
    assert lock.held
    assert lock.trouble is None


@needs_root
def test_a_folder_that_is_closed_to_us_is_told_and_is_no_sign_of_safe_gpu(tmp_path: Path) -> None:
    folder = tmp_path / "safe_gpu"
    folder.mkdir(0o700)
    lock = SafeGpuLock(str(folder))
    os.seteuid(65534)
    try:
        assert lock.take(make=False)
        assert lock.user() is None
    finally:
        os.seteuid(0)
    assert "closed to the broker's user" in (lock.trouble or "")


def test_nobody_can_replace_a_lock_file_that_a_broker_made(tmp_path: Path) -> None:
    folder = tmp_path / "safe_gpu"
    assert SafeGpuLock(str(folder)).take()
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / NAME).stat().st_mode & 0o7777 == 0o666


SAFE_GPU = """
import logging, os, sys
from pathlib import Path
from safe_gpu import safe_gpu
from gpulease.simulator.state import occupy

class Placeholder:
    def __call__(self, device_no):
        print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)  # chosen, and nothing is on it yet
        sys.stdin.readline()
        machine = Path(os.environ["GPULEASE_SIMULATION"])
        return occupy(machine, os.environ["CUDA_VISIBLE_DEVICES"].split(",")[device_no], 1 << 30)

safe_gpu.claim_gpus(1, placeholder_fn=Placeholder())
print("taken", flush=True)
sys.stdin.read()
"""


def test_the_real_safe_gpu_and_the_broker_never_choose_the_same_gpu(site: Apart) -> None:
    """It has chosen GPU 0 and holds its lock, while no process is to be seen there: the broker must wait."""
    environ = simulated_environment(site.state, site.environ)
    neighbour = site.python(SAFE_GPU, environ=environ)
    assert neighbour.stdin is not None
    assert neighbour.stdout is not None
    assert neighbour.stdout.readline() == "0\n", neighbour.stderr and neighbour.stderr.read()
    ours = site.start("get", "-n", "3", "--owner", str(os.getpid()))
    assert ours.stderr is not None
    assert "safe-gpu" in ours.stderr.readline()
    neighbour.stdin.write("\n")
    neighbour.stdin.flush()
    assert neighbour.stdout.readline() == "taken\n"
    assert ours.communicate(timeout=30)[0] == "1,2,3\n"
    assert devices_of(site, "outside") == [0]
    with site.occupied("1,2,3", "1G"):  # what ours run is seen by it in turn
        late = site.python(SAFE_GPU, environ=environ)
        _, error = late.communicate(timeout=30)
        assert "Required 1 GPUs, only found these free: []" in error
