"""`doctor` and `demo` as a newcomer meets them."""

from __future__ import annotations

import subprocess

from support.machine import Machine


def levels(machine: Machine) -> dict[str, str]:
    done = machine.run("doctor", "--json")
    import json

    return {finding["subject"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}


def test_doctor_finds_a_healthy_simulated_machine(machine: Machine) -> None:
    found = levels(machine)
    assert found["simulation"] == "warning"
    assert [found[f"device {index}"] for index in range(4)] == ["ok"] * 4
    done = machine.run("doctor")
    assert done.returncode == 0
    assert "SIMULATED" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_doctor_names_what_is_wrong_and_the_next_step(machine: Machine) -> None:
    machine.set("gpu.1.lost=1", "gpu.2.power=none")
    found = levels(machine)
    assert (found["device 1"], found["device 2"]) == ("error", "warning")
    assert machine.run("doctor").returncode == 69
    machine.set("fault.init=9")
    done = machine.run("doctor")
    assert done.returncode == 69
    assert "not loaded" in done.stdout
    assert machine.run("doctor", CUDA_VISIBLE_DEVICES="x").returncode == 69


def test_demo_shows_a_busy_machine_selects_and_runs(machine: Machine) -> None:
    bare = {name: value for name, value in machine.environ.items() if name != "GPULEASE_SIMULATION"}
    done = subprocess.run(machine.words("demo"), env=bare, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if "A100" in line and " outside " in line]) == 4
    assert "reservation by" in done.stdout
    assert "\n1,3\n" in done.stdout
    assert "sees only GPU-" in done.stdout
    assert all("gpulease" in line for line in done.stdout.rstrip().splitlines()[-3:])
