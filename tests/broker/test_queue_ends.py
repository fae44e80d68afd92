"""A killed job's end is its command's own; `start` neither breaks a promise nor claims what it did not do."""

from __future__ import annotations

import os
import time

from support.machine import Machine

LOOP = "while :; do sleep 0.1; done"


def running(machine: Machine, id: str) -> None:
    deadline = time.monotonic() + 30
    while "ready" not in machine.run("log", id).stdout:
        assert time.monotonic() < deadline


def test_the_code_is_the_commands_not_its_shells(machine: Machine) -> None:
    machine.run("set", "grace", "3")
    saved = machine.run("add", "--", "sh", "-c", f"trap 'exit 42' TERM; echo ready; {LOOP}").stdout.strip()
    deaf = machine.run("add", "--", "sh", "-c", f"trap '' TERM; echo ready; {LOOP}").stdout.strip()
    for id in (saved, deaf):
        running(machine, id)
    machine.run("kill", "all")
    assert machine.run("wait", saved).returncode == 42
    assert machine.run("wait", deaf).returncode == 137
    machine.run("stop")


def test_a_job_of_the_last_broker_tells_its_code_too(machine: Machine) -> None:
    id = machine.run("add", "--", "sh", "-c", f"echo ready; {LOOP}").stdout.strip()
    running(machine, id)
    os.kill(machine.json("status")["broker"]["pid"], 9)
    machine.run("kill", id)
    assert machine.run("wait", id).returncode == 143
    assert machine.json("ls")["simulated"] is True
    machine.run("stop")


def test_start_keeps_a_dependency_and_refuses_what_can_never_be(machine: Machine) -> None:
    first = machine.run("add", "--", "sh", "-c", f"echo ready; {LOOP}").stdout.strip()
    second = machine.run("add", "--after", first, "--", "true").stdout.strip()
    running(machine, first)
    machine.run("start", second)
    assert machine.json("show", second)["jobs"][0]["state"] == "waiting"
    wide = machine.run("add", "--hold", "-n", "9", "--", "true").stdout.strip()
    done = machine.run("start", wide)
    assert done.returncode == 1
    assert "9 devices" in done.stderr
    machine.run("kill", "all")
    machine.run("wait", "all")
    machine.run("stop")
