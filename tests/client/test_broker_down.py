"""While a broker for everybody is down, nothing that it may have granted is called free."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from support.site import Site
from support.waiting import wait_for_end, wait_until

from gpulease import errors
from gpulease.api import status
from gpulease.tui.live_data import LiveData


@pytest.fixture
def down() -> Iterator[Site]:
    """GPU 3 is reserved, GPU 2 excluded, and the shared broker that knows it was killed."""
    site = Site()
    try:
        serve(site)
        assert site.run("get", "-d", "3", "--for", "1h").stdout == "3\n"
        assert site.run("exclude", "2").returncode == 0
        site.kill_broker()
        yield site
    finally:
        site.close()


def serve(site: Site) -> None:
    site.start("broker", "--shared")
    wait_until(site.broker_pid)


def test_status_says_that_the_broker_is_down_and_calls_no_gpu_free(down: Site) -> None:
    done = down.run("status", COLUMNS="200")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert "free: unknown" in lines[0]
    assert "The broker for everybody" in lines[1]
    assert "does not run. Leases are unknown." in lines[1]
    assert [line.split()[2] for line in lines[3:]] == ["unknown"] * 4


def test_json_says_it_too(down: Site) -> None:
    shown = json.loads(down.run("status", "--json").stdout)
    assert {device["state"] for device in shown["devices"]} == {"unknown"}
    assert shown["broker"] is None
    assert "does not run" in shown["trouble"]


@pytest.mark.parametrize(
    "words", [("select",), ("select", "-d", "3"), ("status", "--list", "free"), ("status", "--count", "free")]
)
def test_who_asks_what_is_free_is_refused(down: Site, words: tuple[str, ...]) -> None:
    done = down.run(*words)
    assert (done.returncode, done.stdout) == (69, "")
    assert "gpulease broker --shared" in done.stderr


def test_what_needs_no_lease_is_still_told(down: Site) -> None:
    assert down.run("status", "--list", "all").stdout == "0,1,2,3\n"
    down.set("gpu.1.lost=1")
    assert down.run("status", "--list", "lost").stdout == "1\n"


def test_a_process_of_an_unknown_lease_is_not_called_outside_use(down: Site) -> None:
    with down.occupied("0"):
        first = json.loads(down.run("status", "--json").stdout)["devices"][0]
    assert (first["state"], first["outside"], len(first["processes"])) == ("unknown", [], 1)


def test_python_is_told_the_same(down: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "_kept", None)
    for name in ("GPULEASE_SIMULATION", "GPULEASE_DIR"):
        monkeypatch.setenv(name, down.environ[name])
    assert {device["state"] for device in status.status()["devices"]} == {"unknown"}
    with pytest.raises(errors.BrokerUnavailable):
        status.select(set_environment=False)


def test_a_broker_that_does_not_answer_leaves_its_leases_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    try:
        assert site.run("get", "-d", "3", "--for", "1h").stdout == "3\n"
        pid = wait_until(site.broker_pid)
        os.kill(pid, signal.SIGSTOP)
        done = site.python(
            "import gpulease, gpulease.client.connection; gpulease.client.connection.READ_ONLY = 0.2\n"
            "print({device['state'] for device in gpulease.status()['devices']})"
        )
        assert done.communicate(timeout=30)[0] == "{'unknown'}\n"
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
    finally:
        site.close()


def test_top_calls_nothing_free_that_it_was_told_before_the_broker_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    try:
        serve(site)
        for name in ("GPULEASE_SIMULATION", "GPULEASE_DIR"):
            monkeypatch.setenv(name, site.environ[name])
        live = LiveData()
        assert {device["state"] for device in live.seen.status["devices"]} == {"free"}
        site.kill_broker()

        def noticed() -> bool:
            live.turn(0.0)
            return not live.connected

        wait_until(noticed)
        assert {device["state"] for device in live.seen.status["devices"]} == {"unknown"}
    finally:
        site.close()
