"""No double grant and no leak, whoever dies: an observer that is no part of gpulease says so."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.site import Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

CONTENDER = str(Path(__file__).parents[1] / "support" / "contender.py")
ALL = [0, 1, 2, 3]


def observer(site: Site) -> Path:
    folder = site.folder / "observer"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


def contend(site: Site, folder: Path, rounds: int, seed: int, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, CONTENDER, str(folder), str(rounds), str(seed), *more]
    return site.popen(words, stdout=subprocess.PIPE, stderr=None, stdin=subprocess.DEVNULL)


def ended_well(processes: list[subprocess.Popen[str]]) -> list[str]:
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [output for output in outputs if "DOUBLE" in output] == []
    assert {process.returncode for process in processes} == {0}
    return outputs


def nothing_leaks(site: Site) -> None:
    wait_until(lambda: devices_of(site, "free") == ALL)
    wait_until(lambda: [site.status()[what] for what in ("leases", "line")] == [[], []])


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [12, pytest.param(50, marks=pytest.mark.long("leases"))])
@pytest.mark.parametrize("mode", [(), ("share",)], ids=["whole", "shares"])
def test_many_processes_contend_for_four_gpus(site: Site, mode: tuple[str, ...], count: int) -> None:
    folder = observer(site)
    processes = [contend(site, folder, 6, seed, *mode) for seed in range(count)]
    outputs = ended_well(processes)
    assert all(output.splitlines()[-1] == "5" for output in outputs)
    nothing_leaks(site)
    taken = [event for event in site.json("events", "--since", "1d")["events"] if event["what"] == "granted"]
    assert len(taken) == 6 * count


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("count", "kills"), [(8, 8), pytest.param(12, 20, marks=pytest.mark.long("leases"))])
def test_owners_killed_with_9_while_they_hold_and_while_they_wait(site: Site, count: int, kills: int) -> None:
    folder, dice = observer(site), random.Random(4)
    processes = [contend(site, folder, 10_000, seed, "share") for seed in range(count)]
    for victim in processes[:]:
        assert victim.stdout is not None
        victim.stdout.readline()  # it has held once
    for number in range(kills):
        victim = processes.pop(dice.randrange(len(processes)))
        time.sleep(dice.random() * 0.02)  # a random instant
        victim.kill()
        processes.append(contend(site, folder, 10_000, 100 + number, "share"))
    (folder / "stop").touch()
    ended_well(processes)
    nothing_leaks(site)


def kill_brokers(site: Site, times: int, dice: random.Random) -> None:
    for _ in range(times):
        wait_until(lambda: site.broker_pid() is not None)
        time.sleep(dice.random() ** 3 * 0.3)  # a random instant, more often soon after its start
        wait_until(site.kill_broker)


def through_killed_brokers(site: Site, times: int, contenders: int) -> None:
    folder, dice = observer(site), random.Random(times)
    processes = [contend(site, folder, 1_000_000, seed, "share") for seed in range(contenders)]
    try:
        kill_brokers(site, times, dice)
    finally:
        (folder / "stop").touch()
    ended_well(processes)
    nothing_leaks(site)


@pytest.mark.timeout(400)
def test_the_broker_is_killed_with_9_six_times(site: Site) -> None:
    through_killed_brokers(site, 6, 6)


@pytest.mark.long("leases")
@pytest.mark.timeout(1800)
def test_the_broker_is_killed_with_9_two_hundred_times(site: Site) -> None:
    through_killed_brokers(site, 200, 12)


def test_everybody_is_killed_at_once_again_and_again(site: Site) -> None:
    folder, dice = observer(site), random.Random(9)
    for seed in range(3):
        processes = [contend(site, folder, 10_000, 10 * seed + n, "share") for n in range(6)]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(dice.random() * 0.05)  # a random instant
        site.kill_broker()
        for process in processes:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            assert "DOUBLE" not in process.communicate()[0]
    nothing_leaks(site)


def test_commands_that_wait_through_killed_brokers_hold_what_they_got(site: Site) -> None:
    """A command that was granted while its client had not yet come back must keep its lease when it runs."""
    holder = site.holder("-n", "4")
    waiting = [site.start("run", "-n", "2", "--", "sh", "-c", "echo $GPULEASE_DEVICES; read x") for _ in range(2)]
    wait_until(lambda: len(site.status()["line"]) == 2)
    site.kill_broker()
    holder.kill()
    holder.wait()
    held = []
    for process in waiting:
        assert process.stdout is not None
        held += process.stdout.readline().strip().split(",")
    assert sorted(held) == ["0", "1", "2", "3"]
    assert sorted(lease["pid"] for lease in site.status()["leases"]) == sorted(process.pid for process in waiting)
    assert site.run("run", "--no-wait", "--", "true").returncode == 75
    assert devices_of(site, "leased") == ALL


def test_a_broker_that_dies_between_commit_and_answer_leaves_no_lease_behind(site: Site) -> None:
    """The client asks again by its own name for the request, and gets the lease that was made for it."""
    site.ensure_broker()
    with site.raw() as client:
        client.acquire(1, id="named-by-its-client")
        first = client.granted()["id"]
        site.kill_broker()
    site.ensure_broker()
    with site.raw() as client:
        client.acquire(1, id="named-by-its-client")
        assert client.granted()["id"] == first
    assert len(site.status()["leases"]) == 1
    assert site.status()["leases"][0]["pid"] == os.getpid()
