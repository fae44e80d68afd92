"""What is free: not what is draining, not what others use, not what is excluded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.site import HOLD, Site, devices_of, fresh_site  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

ALL = [0, 1, 2, 3]


def test_a_child_that_outlives_its_parent_keeps_the_gpu_draining(site: Site) -> None:
    use = f'"{sys.executable}" -m gpulease simulate use -- sleep 600'
    script = f"{use} >/dev/null 2>&1 & echo $!; read x"
    parent = site.start("run", "--devices", "0", "--", "bash", "-c", script)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    device = wait_until(lambda: _with_processes(site, 0))
    assert (device["state"], device["processes"][0]["pid"]) == ("leased", child)
    assert device["processes"][0]["lease"] == "L1"
    parent.kill()
    parent.wait()
    device = wait_until(lambda: _in_state(site, 0, "draining"))
    assert [process["pid"] for process in device["processes"]] == [child]
    assert "sleep 600" in device["processes"][0]["command"]
    refused = site.run("run", "--devices", "0", "--no-wait", "--", "true")
    assert refused.returncode == 75
    assert str(child) in site.run("status").stdout
    waiting = site.start("run", "--devices", "0", "--", "echo", "mine")
    wait_until(lambda: site.status()["line"])
    site.kill_broker()
    wait_until(lambda: site.status()["line"])
    assert devices_of(site, "free") == [1, 2, 3]
    os.kill(child, 9)
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def _with_processes(site: Site, index: int) -> Any:
    device = site.status()["devices"][index]
    return device if device["processes"] else None


def _in_state(site: Site, index: int, state: str) -> Any:
    device = site.status()["devices"][index]
    return device if device["state"] == state else None


def test_outside_use_is_shown_with_pid_user_and_command_and_never_granted(site: Site) -> None:
    with site.occupied("0,1,2", "2G") as outsider:
        assert site.run("get", "--owner", str(os.getpid())).stdout == "3\n"
        seen = site.status()["devices"][0]
        assert (seen["state"], seen["outside"]) == ("outside", [outsider.pid])
        assert seen["processes"][0]["user"] == ("root" if os.geteuid() == 0 else seen["processes"][0]["user"])
        assert "sys.stdin" in seen["processes"][0]["command"]
        assert site.run("run", "--no-wait", "--", "true").returncode == 75
        waiting = site.start("run", "-n", "3", "--", "echo", "mine")
        wait_until(lambda: site.status()["line"])
        reason = site.json("explain", site.status()["line"][0]["id"])["devices"][0]["why"]
        assert str(outsider.pid) in reason
    assert waiting.communicate(timeout=30)[0] == "mine\n"


def test_outside_use_that_began_this_instant_is_seen_before_a_grant(site: Site) -> None:
    """A sample serves for a second; the look before a grant is of now."""
    assert devices_of(site, "free") == ALL
    site.ensure_broker()
    for index in ALL:
        assert site.run("status").returncode == 0
        with site.occupied(str(index), "1G"):
            assert site.run("run", "--devices", str(index), "--no-wait", "--", "true").returncode == 75


def test_graphics_processes_are_shown_but_are_not_outside_use(site: Site) -> None:
    with site.occupied("0", "500M", "--graphics") as display:
        site.ensure_broker()
        device = site.status()["devices"][0]
        assert (device["state"], device["processes"][0]["pid"]) == ("free", display.pid)
        assert site.run("run", "--devices", "0", "--no-wait", "--", "true").returncode == 0


def test_memory_that_nobody_explains_is_outside_use_above_a_threshold(site: Site) -> None:
    site.ensure_broker()
    site.set("gpu.0.memory_used=3G", "gpu.1.memory_used=600M")
    wait_until(lambda: devices_of(site, "outside") == [0])
    assert site.run("run", "--devices", "0", "--no-wait", "--", "true").returncode == 75
    assert site.run("run", "--devices", "1", "--no-wait", "--", "true").returncode == 0
    site.set("gpu.0.memory_used=0")
    assert site.run("run", "--devices", "0", "--wait", "20s", "--", "true").returncode == 0


def test_exclude_and_include_set_which_devices_are_managed(site: Site) -> None:
    assert site.run("exclude", "3,1", "--note", "fan broken").stdout == "excluded GPU 3,1\n"
    site.kill_broker()
    device = site.status()["devices"][3]
    assert (device["state"], device["note"]) == ("excluded", "fan broken")
    assert "fan broken" in site.run("status").stdout
    assert site.run("run", "--devices", "3", "--no-wait", "--", "true").returncode in (1, 75)
    waiting = site.start("run", "-n", "3", "--wait", "30s", "--", "echo", "mine")
    wait_until(lambda: site.status()["line"])
    assert site.run("include", "1").stdout == "included GPU 1\n"
    assert waiting.communicate(timeout=30)[0] == "mine\n"
    assert site.run("exclude", "9").returncode == 2
    whats = [event["what"] for event in site.json("events")["events"]]
    assert whats.count("excluded") == 2


def test_a_lease_on_an_excluded_device_stays_until_it_ends(site: Site) -> None:
    holder = site.holder("--devices", "2")
    site.run("exclude", "2")
    assert site.status()["leases"][0]["labels"] == ["2"]
    holder.kill()
    wait_until(lambda: not site.status()["leases"])
    assert devices_of(site, "free") == [0, 1, 3]


def test_a_lost_device_is_not_granted_and_comes_back(site: Site) -> None:
    site.ensure_broker()
    site.set("gpu.0.lost=1")
    wait_until(lambda: devices_of(site, "lost") == [0])
    assert site.run("get", "--owner", str(os.getpid())).stdout == "1\n"
    site.set("gpu.0.lost=0")
    wait_until(lambda: devices_of(site, "free") == [0, 2, 3])


def test_a_leased_device_that_is_lost_stays_leased_to_its_owner(site: Site) -> None:
    holder = site.holder("--devices", "0")
    site.set("gpu.0.lost=1")
    wait_until(lambda: devices_of(site, "lost") == [0])
    assert [lease["pid"] for lease in site.status()["leases"]] == [holder.pid]
    assert site.run("release", "0").returncode == 0


@pytest.fixture
def display() -> Iterator[Site]:
    site = Site(1)
    site.set("gpu.0.display_active=1")
    try:
        yield site
    finally:
        site.close()


def test_the_one_gpu_that_drives_the_display_is_handed_out_all_the_same(display: Site) -> None:
    with display.occupied("0", "900M", "--graphics"):
        holder = display.holder()
        assert display.status()["leases"][0]["pid"] == holder.pid
        assert display.run("run", "--no-wait", "--", "true").returncode == 75


def test_a_stranger_on_a_leased_device_is_told_and_the_lease_stays(site: Site) -> None:
    site.ensure_broker()
    code = f"import gpulease; lease = gpulease.acquire(devices=0); {HOLD}"
    holder = site.python(code)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "ready\n"
    with site.occupied("0", "2G"):
        assert wait_until(lambda: _with_processes(site, 0))["state"] == "leased"
    assert site.run("run", "--devices", "0", "--no-wait", "--", "true").returncode == 75


def test_an_idle_gpu_is_granted_before_one_that_somebody_unseen_keeps_busy(site: Site) -> None:
    assert site.run("status").returncode == 0  # what the broker saw now is old when it is asked
    site.set("gpu.0.utilization=90", "gpu.1.utilization=95", "gpu.3.utilization=40")
    assert site.run("run", "--", "sh", "-c", "echo $GPULEASE_DEVICES").stdout == "2\n"
    assert site.run("run", "--devices", "1,2", "--", "sh", "-c", "echo $GPULEASE_DEVICES").stdout == "1\n"


def test_two_gpus_are_never_two_mig_instances_unless_these_are_asked_for() -> None:
    site = Site(2)
    try:
        site.set("gpu.1.mig=3")
        refused = site.run("get", "-n", "2", "--no-wait", "--owner", str(os.getpid()))
        assert refused.returncode == 1, refused.stderr
        assert "Its 3 MIG instances are not GPUs; --mig asks for them." in refused.stderr
        assert site.run("get", "--for", "1h").stdout == "0\n", "a whole GPU comes first"
        waits = site.run("get", "--no-wait", "--for", "1h")
        assert waits.returncode == 75, "an instance is not what was asked for"
        assert site.run("get", "-n", "2", "--mig", "--for", "1h").stdout == "1:0,1:1\n"
        assert site.run("get", "--model", "mig", "--for", "1h").stdout == "1:2\n"
        assert site.run("select", "-n", "2", "--util", "any", "--mem-util", "any").returncode == 1
    finally:
        site.close()
