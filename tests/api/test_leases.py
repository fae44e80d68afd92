"""`gpulease.acquire`: a lease for a block or for the process's life, safe with threads and forks."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

ALL = [0, 1, 2, 3]


def told(site: Site, code: str, **environ: str) -> Any:
    """What a program prints, as JSON."""
    process = site.python(f"import gpulease, json, os\n{code}", environ=environ)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return json.loads(out)


def test_the_block_sets_the_environment_and_restores_it(site: Site) -> None:
    code = """
names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
look = lambda: [os.environ.get(name) for name in names]
before = look()
with gpulease.acquire(2, note="block") as lease:
    inside, devices, indices = look(), [d.uuid for d in lease.devices], lease.indices
    with gpulease.acquire() as inner:
        nested = look(), inner.indices
    after_inner = look()
print(json.dumps([before, inside, devices, indices, nested, after_inner, look()]))
"""
    before, inside, devices, indices, nested, after_inner, after = told(site, code, CUDA_VISIBLE_DEVICES="7")
    assert before == after == ["7", None]
    assert inside == after_inner == [",".join(devices), "PCI_BUS_ID"]
    assert indices == "0,1"
    assert nested[1] == "2"
    assert nested[0][0] not in devices


def test_without_a_block_it_is_held_until_released_or_for_the_processs_life(site: Site) -> None:
    code = "import gpulease, sys; l = gpulease.acquire(); print(l.indices, flush=True)\n"
    process = site.python(code + "import gc; del l; gc.collect(); print('on', flush=True); sys.stdin.read()")
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    assert process.stdout.readline() == "on\n"
    assert devices_of(site, "leased") == [0]
    process.kill()
    wait_until(lambda: devices_of(site, "free") == ALL)
    assert told(site, "l = gpulease.acquire(4); l.release(); l.release(); m = gpulease.acquire(4); print(4)") == 4


def test_threads_share_one_process_and_no_device(site: Site) -> None:
    code = """
import threading
seen, held, lock, all_held = [], set(), threading.Lock(), threading.Event()
def work(number):
    for _ in range(5):
        with gpulease.acquire() as lease:
            with lock:
                assert lease.indices not in held
                held.add(lease.indices)
                if len(held) == 4:
                    all_held.set()
            all_held.wait(40)
            with lock:
                held.remove(lease.indices)
                seen.append(lease.id)
threads = [threading.Thread(target=work, args=(n,)) for n in range(20)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps([len(seen), len(set(seen)), all_held.is_set(), os.environ.get("CUDA_VISIBLE_DEVICES")]))
"""
    assert told(site, code) == [100, 100, True, None]
    assert site.status()["leases"] == []


def test_a_forked_child_neither_holds_nor_releases(site: Site) -> None:
    code = """
import time
lease = gpulease.acquire(3)
child = os.fork()
if child == 0:
    lease.release()
    with gpulease.acquire() as own:
        os._exit(0 if own.indices == "3" else 1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
until = time.monotonic() + 40
while len(gpulease.status()["leases"]) > 1 and time.monotonic() < until:
    time.sleep(0.01)  # the end of the child, which had one of its own, is noticed in a moment
print(json.dumps([code, [row["pid"] == os.getpid() for row in gpulease.status()["leases"]]]))
"""
    assert told(site, code) == [0, [True]]


def test_a_child_that_outlives_the_parent_does_not_hold_its_lease(site: Site) -> None:
    code = "import gpulease, os\nl = gpulease.acquire(4)\nif os.fork() == 0: os.read(0, 1)\nelse: os._exit(0)"
    process = site.python(code)
    assert process.wait(30) == 0
    wait_until(lambda: devices_of(site, "free") == ALL)


def test_the_placeholder_is_called_for_each_device_and_kept(site: Site) -> None:
    code = """
import weakref
class Memory: pass
kept, calls = [], []
def occupy(number):
    calls.append((number, len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))))
    memory = Memory(); kept.append(weakref.ref(memory)); return memory
with gpulease.acquire(3, placeholder=occupy):
    during = [ref() is not None for ref in kept]
def fails(number): raise OSError("no CUDA")
try:
    gpulease.acquire(4, placeholder=fails)
except OSError as error:
    failed = str(error)
with gpulease.acquire(4):
    print(json.dumps([calls, during, [ref() is None for ref in kept], failed]))
"""
    calls, during, after, failed = told(site, code)
    assert calls == [[0, 3], [1, 3], [2, 3]]
    assert during == after == [True] * 3
    assert failed == "no CUDA"


def test_placeholders_are_shown_and_freed_by_their_own_hooks(site: Site) -> None:
    code = """
freed = []
class Context:
    def __init__(self, number): self.number = number
    def detach(self): freed.append(("detach", self.number))
class Memory(Context):
    def release(self): freed.append(("release", self.number))
class Maker:
    def __call__(self, number): return number
    def release(self, made): freed.append(("by maker", made))
for placeholder in (Context, Memory, Maker()):
    with gpulease.acquire(1, placeholder=placeholder) as lease:
        freed.append(len(lease.placeholders))
    freed.append(lease.placeholders)
print(json.dumps(freed))
"""
    each = [[1, [hook, 0], []] for hook in ("detach", "release", "by maker")]
    assert told(site, code) == [one for three in each for one in three]


def test_errors_are_of_their_kinds(site: Site) -> None:
    site.holder("-n", "4")
    code = """
import time
names = []
for action in (
    lambda: gpulease.acquire(wait=0),
    lambda: gpulease.acquire(wait=0.2),
    lambda: gpulease.acquire(5),
    lambda: gpulease.acquire(model="no such card"),
    lambda: gpulease.acquire(devices=9),
    lambda: gpulease.acquire(0),
    lambda: gpulease.acquire(wait=-1),
    lambda: gpulease.acquire(2, mem="1G"),
    lambda: gpulease.acquire("two"),
):
    try:
        action()
    except gpulease.errors.GpuleaseError as error:
        names.append(type(error).__name__)
print(json.dumps(names))
"""
    waits = ["NotGranted", "NotGranted", "NotEnoughDevices", "NotEnoughDevices", "UnknownDevice"]
    assert told(site, "import gpulease.errors\n" + code) == [*waits, *["UsageError"] * 4]
    assert site.status()["line"] == []


def test_release_and_the_next_acquire_go_on_after_the_broker_was_killed(site: Site) -> None:
    process = site.python(
        "import gpulease, sys\nlease = gpulease.acquire(4)\nprint('held', flush=True)\nsys.stdin.readline()\n"
        "lease.release()\nagain = gpulease.acquire(4, wait=0)\nprint(again.id, flush=True)\nsys.stdin.read()"
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    site.kill_broker()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("L")
    assert len(site.status()["leases"]) == 1


def test_a_wait_that_is_interrupted_leaves_nothing(site: Site) -> None:
    site.holder("-n", "4")
    code = """
import signal, threading, time
class Woken(Exception): pass
def wake(*_): raise Woken
def wake_who_waits():
    while not gpulease.status()["line"]: time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGALRM)
signal.signal(signal.SIGALRM, wake)
threading.Thread(target=wake_who_waits).start()
try:
    gpulease.acquire()
except Woken:
    print(json.dumps(len(gpulease.status()["line"])))
"""
    assert told(site, code) == 0


def test_a_process_with_thousands_of_open_files_can_ask(site: Site) -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1500)]
with gpulease.acquire() as lease:
    print(json.dumps(lease.indices))
"""
    assert told(site, code) == "0"


def test_no_driver_and_no_simulation_is_a_clear_error(site: Site) -> None:
    code = """
import gpulease.errors
try:
    gpulease.acquire()
except gpulease.errors.NoDevices as error:
    print(json.dumps(error.next_step))
"""
    if any(map(os.path.exists, ("/dev/nvidia0", "/dev/kfd"))):
        pytest.skip("there is a GPU here")
    del site.environ["GPULEASE_SIMULATION"]
    assert "gpulease simulate" in told(site, code)
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 69
    assert "gpulease simulate" in done.stderr
