"""Safe-gpu's users and ours on the same GPUs, with CUDA contexts that take half a second: one computes on each.

Safe-gpu itself is the real one; the GPU is simulated, at the driver's own libraries. What is held is seen by safe-gpu
through placeholders of the broker.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from select import select
from threading import Event
from typing import Any

import pytest
from support.apart import Apart, opened
from support.site import devices_of
from support.waiting import wait_until

from gpulease.broker.neighbours.safe_gpu import NAME
from gpulease.simulator.folder import simulated_environment

LOOPS = ("safe-gpu", "safe-gpu", "run", "get", "acquire")
HOLD_LOCK = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o666)
fcntl.lockf(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def somebody_chooses(site: Apart) -> Iterator[subprocess.Popen[str]]:
    with site.python(HOLD_LOCK, str(site.lock_folder / NAME)) as holding:
        assert holding.stdout is not None
        assert holding.stdout.readline() == "held\n"
        yield holding
        holding.kill()


TESTS = str(Path(__file__).parents[2])


@pytest.fixture
def site() -> Iterator[Apart]:
    yield from opened(2)


def together(site: Apart, turns: int, patience: float) -> dict[str, Any]:
    """All loops at once until each had its turns, however long that takes here, and somebody who looks meanwhile."""
    environ = simulated_environment(site.state, site.environ | {"PYTHONPATH": TESTS})
    (shared := site.folder / "turns").mkdir()
    started = [(role, turns) for role in LOOPS] + [("observe", len(LOOPS))]
    words = [[sys.executable, "-m", "support.beside_safe_gpu", role, str(n), str(shared)] for role, n in started]
    running = [site.popen(site.inside(one), env=environ) for one in words]
    reply = [process.communicate(timeout=patience) for process in running]
    assert all(out for out, _ in reply), reply
    counts = [json.loads(out) for out, _ in reply]
    done = dict.fromkeys(LOOPS, 0)
    for role, count in zip(LOOPS, counts, strict=False):
        done[role] += count["done"]
    return {"done": done, **counts[-1]}


def check(site: Apart, turns: int, patience: float = 100) -> None:
    """On a busy machine safe-gpu's own choice may take long, and so may a placeholder."""
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    site.ensure_broker()
    site.set("cuda.slow=500")
    site.run("set", "safe-gpu-patience", "1h")
    with somebody_chooses(site):  # its very first user may meet a lease that was granted before
        wait_until(lambda: "safe-gpu is used here" in site.log())
    seen = together(site, turns, patience)
    print(seen)
    assert "no placeholder" not in site.log()
    assert seen["collisions"] == [], site.log()
    assert all(count >= turns for count in seen["done"].values()), seen


def test_no_two_compute_on_one_gpu(site: Apart) -> None:
    check(site, 1)


@pytest.mark.long("neighbours")
@pytest.mark.timeout(900)
def test_no_two_compute_on_one_gpu_many_times(site: Apart) -> None:
    check(site, int(os.environ.get("GPULEASE_BESIDE_TURNS", "10")), 800)


# -------------------------------------------------------------------- the placeholder


def placeholders(site: Apart) -> dict[str, int]:
    """By the GPU's number: processes of the broker's own that are to be seen there."""
    rows = site.status()["devices"]
    found = {row["label"]: one["pid"] for row in rows for one in row["processes"] if "placeholder" in one["command"]}
    return {label: pid for label, pid in found.items() if os.path.exists(f"/proc/{pid}/stat")}


def told(site: Apart) -> dict[str, int]:
    """The same as the broker says at once, without a sample."""
    found: dict[str, int] = site.status()["neighbours"].get("safe-gpu", {}).get("placeholders", {})
    return found


def use(site: Apart, setting: str) -> None:
    assert site.run("set", "neighbours.safe-gpu", setting).returncode == 0


def take_with_safe_gpu(site: Apart) -> int:
    """The exit code of the real safe-gpu that wants one GPU."""
    environ = simulated_environment(site.state, site.environ | {"PYTHONPATH": TESTS})
    words = [sys.executable, "-m", "support.beside_safe_gpu", "claim-with-safe-gpu"]
    return site.popen(site.inside(words), env=environ).wait(60)


def test_a_lease_on_which_nobody_computes_is_taken_to_safe_gpu(site: Apart) -> None:
    use(site, "on")
    site.holder("-n", "2")
    assert sorted(wait_until(lambda: placeholders(site))) == ["0", "1"]
    assert take_with_safe_gpu(site) != 0
    assert devices_of(site, "leased") == [0, 1]
    assert all(row["outside"] == [] for row in site.status()["devices"])


def lock_is_free(site: Apart) -> bool:
    with open(site.lock_folder / NAME, "r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_no_grant_waits_for_a_placeholder_and_users_of_safe_gpu_do(site: Apart) -> None:
    """Whoever held safe-gpu's lock once made every grant of everybody take as long as a CUDA context."""
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    use(site, "on")
    site.set("cuda.slow=4000")
    holders = [site.holder("--devices", index) for index in "01"]
    assert not placeholders(site)
    assert not lock_is_free(site)
    wait_until(lambda: sorted(placeholders(site)) == ["0", "1"])
    wait_until(lambda: lock_is_free(site))
    for holder in holders:
        holder.kill()


def test_a_lease_that_is_over_at_once_needs_no_placeholder(site: Apart) -> None:
    use(site, "on")
    site.set("fault.cuda=2")  # one that were started would fail, which is logged
    with site.raw() as raw:
        for _ in range(20):
            raw.acquire(1, 30)
            assert "ok" in raw.ask("release", what=[raw.granted()["id"]])
    assert "no placeholder" not in site.log()


def test_users_of_safe_gpu_get_the_lock_though_grants_never_pause() -> None:
    """There is always a placeholder that is not there yet, for which the lock is kept."""
    for site in opened(4):
        _choose_beside_grants(site)


def _choose_beside_grants(site: Apart) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    use(site, "on")
    site.set("cuda.slow=1000")
    over = Event()

    def take_turns(index: str) -> None:
        with site.raw() as raw:
            while not over.is_set():
                raw.send("acquire", request={"devices": [index]}, kind="acquire", wait=60)
                id = raw.granted()["id"]
                over.wait(0.5 + 0.11 * int(index))  # its placeholder is on its way, and ends before it is there
                assert "ok" in raw.ask("release", what=[id])

    with ThreadPoolExecutor() as threads:
        loops = [threads.submit(take_turns, index) for index in "0123"]
        wait_until(lambda: len(devices_of(site, "leased")) == 4)
        choosing = site.python(HOLD_LOCK, str(site.lock_folder / NAME), stdin=subprocess.PIPE)
        assert choosing.stdout is not None
        try:
            assert select([choosing.stdout], [], [], 20)[0], "it waits for ever"
        finally:
            choosing.kill()
            over.set()
        for loop in loops:
            loop.result()


def remembered_for(site: Apart) -> float:
    """Seconds from now on in which safe-gpu counts."""
    (copy := site.folder / "copy.db").unlink(missing_ok=True)
    assert site.run("backup", str(copy)).returncode == 0
    with closing(sqlite3.connect(copy)) as database:
        facts = dict(database.execute("SELECT * FROM facts").fetchall())
    return float(json.loads(facts["neighbours"])["safe-gpu"]) - time.time()


def test_who_only_holds_the_lock_is_soon_forgotten_and_who_takes_a_gpu_is_not(site: Apart) -> None:
    site.ensure_broker()
    with somebody_chooses(site):
        wait_until(lambda: "safe-gpu is used here" in site.log())
    assert 200 < remembered_for(site) < 400
    hold = [sys.executable, "-c", HOLD_LOCK, str(site.lock_folder / NAME)]
    uses = site.popen(site.words("simulate", "use", "0", "--memory", "1G", "--", *hold), stdin=subprocess.PIPE)
    assert uses.stdout is not None
    assert uses.stdout.readline() == "held\n"
    wait_until(lambda: site.status() and remembered_for(site) > 80_000)
    uses.kill()


def test_the_placeholder_makes_way_for_the_owner_and_comes_back(site: Apart) -> None:
    use(site, "on")
    site.holder("--devices", "0")
    assert wait_until(lambda: list(placeholders(site))) == ["0"]
    with site.occupied("0", "1G"):
        wait_until(lambda: not placeholders(site))
    wait_until(lambda: list(placeholders(site)) == ["0"])


def test_it_ends_with_the_lease_and_with_the_broker_and_the_next_broker_places_it_again(site: Apart) -> None:
    use(site, "on")
    holder = site.holder("--devices", "0")
    (former,) = wait_until(lambda: placeholders(site)).values()
    site.kill_broker()
    wait_until(lambda: not os.path.exists(f"/proc/{former}"))
    site.ensure_broker()
    (again,) = wait_until(lambda: placeholders(site)).values()
    holder.kill()
    wait_until(lambda: devices_of(site, "free") == [0, 1] and not os.path.exists(f"/proc/{again}/exe"))


def test_safe_gpu_is_found_by_who_holds_its_lock_and_remembered(site: Apart) -> None:
    site.holder("--devices", "0")
    assert not told(site)
    assert not list(site.lock_folder.iterdir()), "a broker that was not told of safe-gpu makes no file of its"
    with somebody_chooses(site) as holder:
        wait_until(lambda: f"safe-gpu is used here, by process {holder.pid}" in site.log())
    assert wait_until(lambda: list(placeholders(site))) == ["0"]
    (site.lock_folder / NAME).unlink()
    site.kill_broker()
    site.ensure_broker()
    assert wait_until(lambda: list(placeholders(site))) == ["0"]


def test_a_file_that_anybody_can_make_is_no_sign_of_safe_gpu(site: Apart) -> None:
    """`touch` by any user turned placeholders on for a month, and made each grant 28 times as slow."""
    (site.lock_folder / NAME).touch()
    for _ in range(2):
        holder = site.holder("--devices", "0")
        assert not told(site)
        holder.communicate(timeout=30)
    assert "safe-gpu is used here" not in site.log()


def test_a_lock_file_that_cannot_be_locked_is_told_and_keeps_nobody_from_a_gpu(site: Apart) -> None:
    (site.lock_folder / NAME).symlink_to("/nowhere")
    site.holder("--devices", "0")
    assert not told(site)
    assert "is a symbolic link" in site.status()["neighbours"]["safe-gpu"]["trouble"]
    assert "is a symbolic link" in " ".join(site.run("doctor").stdout.split())
    assert site.log().count("is a symbolic link") == 1
    (site.lock_folder / NAME).unlink()
    wait_until(lambda: site.status()["neighbours"]["safe-gpu"]["trouble"] is None)


def test_a_placeholder_that_failed_is_forgotten_with_its_lease(site: Apart) -> None:
    use(site, "on")
    site.set("fault.cuda=2")
    holder = site.holder("--devices", "0")
    wait_until(lambda: "out of memory" in (site.status()["neighbours"]["safe-gpu"]["trouble"] or ""))
    holder.kill()
    wait_until(lambda: site.status()["neighbours"]["safe-gpu"]["trouble"] is None)


def test_the_lock_file_of_a_broker_is_no_sign_of_safe_gpu(site: Apart) -> None:
    use(site, "on")
    assert site.run("run", "--", "true").returncode == 0
    assert (site.lock_folder / NAME).read_bytes()
    use(site, "auto")
    site.holder("--devices", "0")
    assert not told(site)


def test_switched_off_its_lock_counts_for_nothing(site: Apart) -> None:
    use(site, "off")
    with somebody_chooses(site):
        site.holder("--devices", "0")
        assert not told(site)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fault.cuda=2", "out of memory"),
        ("gpu.0.compute_mode=3", "admits one process only"),
        ("fault.hang=cuDevicePrimaryCtxRetain", "no context within 1 s"),
    ],
)
def test_where_none_can_be_had_the_gpu_is_granted_without_and_doctor_says_so(site: Apart, fault: str, why: str) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = "1"
    use(site, "on")
    site.set(fault)
    site.holder("--devices", "0")
    wait_until(lambda: why in (site.status()["neighbours"]["safe-gpu"]["trouble"] or ""))
    assert not told(site)
    assert site.run("run", "--devices", "1", "--", "true").returncode == 0
    assert site.log().count("no placeholder on GPU-") <= 2
    assert why in " ".join(site.run("doctor").stdout.split())
