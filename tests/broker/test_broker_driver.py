"""A driver that hangs makes samples old, and says so; the broker goes on."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path

from support.queue_site import alive
from support.site import HOLD, Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_for_end, wait_until

from gpulease.broker.edge.sampler import ATTEMPTS

ALL = [0, 1, 2, 3]
HANGS = "3"  # seconds: the process that asks the driver has to start in them too


def hung(site: Site) -> None:
    """Every call hangs from now on, and the broker has noticed."""
    site.set("fault.hang=1")
    wait_until(lambda: site.status()["trouble"])


def test_while_the_driver_hangs_status_says_so_release_works_and_nothing_is_granted(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = HANGS
    holder = site.holder("--devices", "0,1", "-n", "2")
    site.run("get", "--devices", "2", "--owner", str(os.getpid()))
    waiting = site.start("run", "-n", "2", "--devices", "2,3", "--", "echo", "mine")
    wait_until(lambda: site.status()["line"])
    hung(site)
    shown = site.status()
    assert "did not answer" in shown["trouble"]
    assert shown["sample_age"] > 0.4
    assert len(shown["devices"]) == 4
    assert len(shown["leases"]) == 2
    assert "did not answer" in shown["line"][0]["why"]
    text = site.run("status").stdout
    assert "did not answer" in text
    doctor = site.run("doctor")
    assert (doctor.returncode, "did not answer" in doctor.stdout) == (69, True)
    begin = time.monotonic()
    assert site.run("release", "2").returncode == 0
    assert time.monotonic() - begin < 30
    refused = site.run("run", "--devices", "3", "--no-wait", "--", "true")
    assert refused.returncode in (69, 75)
    assert "did not answer" in refused.stderr
    assert "Wait longer" not in refused.stderr
    assert waiting.poll() is None
    assert len(site.status()["line"]) == 1
    holder.kill()
    holder.wait()
    wait_until(lambda: not site.status()["leases"])
    assert waiting.poll() is None
    site.set("fault.hang=0")
    assert waiting.communicate(timeout=60)[0] == "mine\n"
    wait_until(lambda: site.status()["trouble"] is None)
    wait_until(lambda: devices_of(site, "free") == ALL)


def test_a_broker_that_never_saw_a_device_refuses_with_the_drivers_words(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = HANGS
    site.set("fault.hang=1")
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 69
    assert "did not answer" in done.stderr
    site.set("fault.hang=0")
    wait_until(lambda: site.run("get", "--owner", str(os.getpid())).returncode == 0)


def test_leases_are_found_again_by_a_broker_that_starts_while_the_driver_hangs(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = HANGS
    holder = site.holder("--devices", "0")
    site.set("fault.hang=1")
    site.kill_broker()
    done = site.run("release", "L1")
    assert done.returncode == 0, done.stderr
    assert holder.poll() is None


def test_who_was_granted_by_a_former_broker_hears_of_it_once_the_devices_are_known(site: Site) -> None:
    """Killed between grant and claim; the next broker finds a driver that hangs. Before, it granted no devices."""
    site.environ["GPULEASE_PROBE_DEADLINE"] = HANGS
    site.ensure_broker()
    asked = {"request": {"gpus": 2}, "kind": "get", "owner": os.getpid(), "wait": None, "id": "mine"}
    with site.raw() as raw:
        raw.send("acquire", **asked)
        granted = raw.granted()
        site.set("fault.hang=1")
        site.kill_broker()
    site.ensure_broker()
    with site.raw() as raw:
        raw.send("acquire", **asked)
        assert raw.receive()["waiting"]["id"] == granted["id"]
        site.set("fault.hang=0")
        while "granted" not in (reply := raw.receive()):
            pass
        assert reply["granted"] == granted
        assert raw.ask("taken", id=granted["id"])["ok"]["taken"]


def test_a_driver_that_fails_to_start_is_told_and_asked_again(site: Site) -> None:
    site.set("fault.init=999")
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 69
    site.set("fault.init=0")
    wait_until(lambda: site.run("get", "--owner", str(os.getpid())).returncode == 0)


def sampler_of(site: Site) -> int:
    pid = wait_until(site.broker_pid)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return wait_until(lambda: list(filter(alive, map(int, children.read_text().split()))))[0]


def test_a_sampler_that_is_killed_is_started_again(site: Site) -> None:
    site.ensure_broker()
    site.status()
    for _ in range(3):
        os.kill(sampler_of(site), signal.SIGKILL)
        assert site.run("run", "--wait", "30s", "--", "true").returncode == 0
    wait_until(lambda: devices_of(site, "free") == ALL)
    wait_until(lambda: site.status()["trouble"] is None)


def kill_samplers(site: Site, count: int) -> None:
    """One after the other, as soon as each is there."""
    last = 0
    for _ in range(count):
        last = wait_until(lambda: pid if (pid := sampler_of(site)) != last else None)  # noqa: B023
        os.kill(last, signal.SIGKILL)


def test_a_sampler_that_dies_before_the_first_sample_costs_nobody_its_wait(site: Site) -> None:
    """The question is asked again of the next one; before, who would have waited without end was refused."""
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    site.ensure_broker()
    site.set("fault.hang=1")
    waiting = site.start("run", "--", "echo", "mine")
    kill_samplers(site, 2)
    site.set("fault.hang=0")
    assert waiting.communicate(timeout=60)[0] == "mine\n"


def test_a_sampler_that_keeps_dying_is_told_as_what_it_is(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    site.ensure_broker()
    site.set("fault.hang=1")
    refused = site.start("run", "--", "true")
    kill_samplers(site, 1 + ATTEMPTS)
    assert "keeps ending unexpectedly" in refused.communicate(timeout=60)[1]
    assert refused.returncode == 69


def test_a_sampler_ends_with_its_broker_while_the_driver_hangs(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = "60"
    site.ensure_broker()
    site.status()
    site.set("fault.hang=1")
    sampler = sampler_of(site)
    with site.raw() as raw:
        raw.acquire(1)
        assert site.raw().ask("ping")  # the driver was asked
        site.kill_broker()
    wait_for_end(sampler)


def test_a_sampler_that_is_stopped_counts_as_a_driver_that_hangs(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = HANGS
    site.ensure_broker()
    site.status()
    os.kill(sampler_of(site), signal.SIGSTOP)
    wait_until(lambda: site.status()["trouble"])
    assert site.run("run", "--wait", "30s", "--", "true").returncode == 0


def test_a_waiting_broker_looks_about_once_a_second_and_an_idle_one_not_at_all(site: Site) -> None:
    site.environ["GPULEASE_PROBE_DEADLINE"] = "5"
    site.holder("-n", "4")
    waiting = [site.start("run", "--", "true") for _ in range(3)]
    wait_until(lambda: len(site.status()["line"]) == 3)
    sampler = sampler_of(site)
    before, begin = _reads(sampler), time.monotonic()
    wait_until(lambda: time.monotonic() - begin > 3)
    looks = (_reads(sampler) - before) / (time.monotonic() - begin)
    for process in waiting:
        process.kill()
    wait_until(lambda: not site.status()["line"])
    assert looks < 60, "system calls that read, for each second"


def _reads(pid: int) -> int:
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["syscr"])


def test_a_sample_too_long_for_one_read_is_understood() -> None:
    """A process with a long command line on each of 64 GPUs."""
    site = Site(64)
    try:
        words = site.words("simulate", "use", ",".join(map(str, range(63))), "--memory", "2G", "--")
        process = site.popen([*words, sys.executable, "-c", HOLD, *["x" * 100] * 39])
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            assert site.run("run", "--no-wait", "--", "true").returncode == 0
            assert len(devices_of(site, "outside")) == 63
        assert "Traceback" not in site.log(), site.log()
    finally:
        site.close()


def test_a_sampler_that_cannot_be_started_is_told(site: Site) -> None:
    """As when the process table is full: a client is still let in, and the pipes of a child are too many."""
    pid = site.ensure_broker()
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_first_free(pid) + 1, limits[1]))
    done = site.run("get", "--owner", str(os.getpid()))
    assert done.returncode == 69
    assert "cannot be started" in done.stderr
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: site.run("get", "--owner", str(os.getpid())).returncode == 0)


def _first_free(pid: int) -> int:
    """The number that the next file which this process opens will have."""
    used = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    return next(number for number in range(len(used) + 1) if number not in used)
