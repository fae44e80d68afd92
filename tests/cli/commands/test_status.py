"""`gpulease status` tells the truth about the machine, in a table that fits and in JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import time

import pytest
from support.machine import Machine

CONTRACT = "index uuid name vendor memory_total memory_used utilization temperature power state leases processes"
COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def test_json_has_every_field_of_the_contract(machine: Machine) -> None:
    with machine.occupied("1", "8G") as process:
        shown = machine.json("status")
        assert {"host", "simulated", "broker", "devices", "leases", "line"} <= set(shown)
        assert shown["simulated"] is True
        for device in shown["devices"]:
            assert set(CONTRACT.split()) <= set(device)
        used = shown["devices"][1]
        assert (used["state"], used["memory_used"]) == ("outside", 8 << 30)
        seen = used["processes"][0]
        assert {"pid", "user", "command", "memory", "lease"} <= set(seen)
        assert (seen["pid"], seen["memory"]) == (process.pid, 8 << 30)
        assert "sys.stdin.read" in seen["command"]
    assert machine.json("status")["devices"][1]["state"] == "free"


def test_the_table_fits_80_columns_and_marks_simulation(machine: Machine) -> None:
    machine.set("gpu.2.lost=1", "gpu.0.utilization=100", "gpu.0.temperature=100", "gpu.0.power=1234567")
    with machine.occupied("0", "79G"):
        done = machine.run("status")
        lines = done.stdout.splitlines()
        assert done.returncode == 0
        assert "SIMULATED" in lines[0]
        assert max(map(len, lines)) <= 80
        assert "\x1b" not in done.stdout
        assert [line[31:39].strip() for line in lines if re.match(r"  \d", line)] == ["outside", "free", "lost", "free"]


@pytest.mark.parametrize("columns", [72, 60, 50, 40])
def test_a_narrow_and_an_ascii_terminal_are_respected(machine: Machine, columns: int) -> None:
    done = machine.run("status", COLUMNS=str(columns), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines()[1:])) <= columns
    assert done.stdout.isascii()


def on_terminal(machine: Machine, *words: str, **more: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    environ = {**machine.environ, "TERM": "xterm", **more}
    process = subprocess.Popen(machine.words(*words), env=environ, stdin=theirs, stdout=theirs)
    os.close(theirs)
    return process, ours


def read_until(descriptor: int, enough: str, count: int = 1) -> str:
    text, deadline = b"", time.monotonic() + 30
    while text.count(enough.encode()) < count and time.monotonic() < deadline:
        if select.select([descriptor], [], [], 1)[0]:
            try:
                text += os.read(descriptor, 65536)  # which may end within a letter
            except OSError:
                break
    return text.decode(errors="ignore")


def test_a_terminal_gets_colour_unless_no_color_is_set(machine: Machine) -> None:
    process, descriptor = on_terminal(machine, "status")
    coloured = read_until(descriptor, "no such text")
    assert process.wait(30) == 0
    process, descriptor = on_terminal(machine, "status", NO_COLOR="1")
    plain = read_until(descriptor, "no such text")
    assert process.wait(30) == 0
    assert "\x1b[32m" in coloured
    assert "\x1b" not in plain
    memory = re.compile(r"[\d.]+[KMGT] of ")  # of the host, which others use too
    assert memory.sub("", COLOUR.sub("", coloured)) == memory.sub("", plain)


def test_watch_redraws_in_place_until_interrupted(machine: Machine) -> None:
    process, descriptor = on_terminal(machine, "status", "--watch", "0.1")
    text = read_until(descriptor, "\x1b[H", 3)
    machine.set("gpu.3.utilization=77")
    assert "77%" in read_until(descriptor, "77%")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert text.count("\x1b[H") >= 3
    assert text.count("\x1b[2J") == 1


def test_watch_into_a_pipe_gives_one_document_a_line(machine: Machine) -> None:
    words = machine.words("status", "--watch", "0.1", "--json")
    with subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
    assert process.returncode == 0
    assert documents[0]["time"] < documents[1]["time"]


def test_a_reader_that_leaves_early_gets_no_complaint(machine: Machine) -> None:
    line = f"{shlex.join(machine.words('status', '--json'))} | head -c 1"
    done = subprocess.run(["sh", "-c", line], env=machine.environ, capture_output=True, text=True)
    assert done.stderr == ""


def test_visible_shows_what_cuda_would_and_says_so_when_that_is_nothing(machine: Machine) -> None:
    shown = machine.json("status", "--visible", CUDA_VISIBLE_DEVICES="2,0,x,1")
    assert [device["index"] for device in shown["devices"]] == [2, 0]
    assert machine.json("status", "--visible", CUDA_VISIBLE_DEVICES="")["devices"] == []
    done = machine.run("status", "--visible", CUDA_VISIBLE_DEVICES="garbage")
    assert done.returncode == 2
    assert "shows no device" in done.stderr
    assert done.stderr.count("\n") == 2


def test_fan_power_limit_and_throttling_are_told_with_and_without_a_broker(machine: Machine) -> None:
    machine.set("gpu.1.fan=45", "gpu.1.power_limit=300W", "gpu.1.throttling=hw_thermal_slowdown,sw_power_cap")
    for begin in ((), ("run", "--", "true")):
        if begin:
            assert machine.run(*begin).returncode == 0
        first, second = machine.json("status")["devices"][:2]
        assert (first["power_limit"], first["fan_speed"], first["throttling"]) == (400_000, None, [])
        assert (second["power_limit"], second["fan_speed"]) == (300_000, 45)
        assert second["throttling"] == ["sw_power_cap", "hw_thermal_slowdown"]
    assert "slowed down: sw_power_cap, hw_thermal_slowdown" in machine.run("status").stdout
    assert machine.run("stop").returncode == 0


def test_the_hosts_memory_is_told_with_and_without_a_broker(machine: Machine) -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for begin in ((), ("run", "--", "true")):
        if begin:
            assert machine.run(*begin).returncode == 0
        shown = machine.json("status")
        assert abs(shown["host_memory_total"] - pages) < pages / 5
        assert 0 < shown["host_memory_available"] < shown["host_memory_total"]
        assert "RAM free" in machine.run("status").stdout
    assert machine.run("stop").returncode == 0


def test_scripts_get_counts_and_indices_in_one_line(machine: Machine) -> None:
    machine.set("gpu.2.lost=1")
    with machine.occupied("0"):
        assert machine.run("status", "--list", "free").stdout == "1,3\n"
        assert machine.run("status", "--count", "free").stdout == "2\n"
        assert machine.run("status", "--count", "all").stdout == "4\n"
        assert machine.run("status", "--list", "outside").stdout == "0\n"
        assert machine.run("status", "--list", "leased").stdout == "\n"


def test_what_the_driver_refuses_is_null(machine: Machine) -> None:
    machine.set("gpu.0.utilization=none", "gpu.0.temperature=none", "gpu.0.power=none")
    device = machine.json("status")["devices"][0]
    assert device["utilization"] is device["temperature"] is device["power"] is None
    machine.set("gpu.1.fan=none", "gpu.1.throttling=none", "gpu.1.power_limit=none")
    device = machine.json("status")["devices"][1]
    assert device["fan_speed"] is device["throttling"] is device["power_limit"] is None
    assert "?" in machine.run("status").stdout


def test_mig_instances_are_devices_of_their_own(machine: Machine) -> None:
    machine.set("gpu.1.mig=3")
    with machine.occupied("1:2", "4G"):
        devices = machine.json("status")["devices"]
    assert [device["label"] for device in devices] == ["0", "1:0", "1:1", "1:2", "2", "3"]
    assert [device["state"] for device in devices[1:4]] == ["free", "free", "outside"]
    assert len({device["uuid"] for device in devices}) == 6
    assert all(device["uuid"].startswith("MIG-") for device in devices[1:4])
    assert devices[1]["utilization"] is None


def test_memory_without_a_visible_process_is_outside_use(machine: Machine) -> None:
    machine.set("gpu.0.memory_used=20G")
    assert machine.json("status")["devices"][0]["state"] == "outside"
    assert "no visible process explains" in machine.run("status").stdout


def test_a_graphics_process_is_shown_and_is_no_outside_use(machine: Machine) -> None:
    with machine.occupied("0", "200M", "--graphics"):
        device = machine.json("status")["devices"][0]
        assert device["processes"][0]["graphics"] is True
        assert device["state"] == "free"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("fault.init=9", "not loaded"),
        ("fault.init=18", "different versions"),
        ("fault.init=4", "refuses access"),
        ("fault.init=999", "answers with an error"),
        ("fault.middle=nvmlDeviceGetCount_v2:999", "answers with an error"),
        ("fault.hang=nvmlInit", "did not answer within 1 s"),
        ("fault.hang=nvmlDeviceGetUtilizationRates", "did not answer within 1 s"),
    ],
)
def test_a_driver_in_trouble_gives_code_69_and_two_sentences(machine: Machine, fault: str, said: str) -> None:
    machine.set(fault)
    done = machine.run("status", GPULEASE_PROBE_DEADLINE="1" if "hang" in fault else "30")
    assert done.returncode == 69
    assert said in done.stderr
    assert done.stderr.count("\n") == 2
    assert "Traceback" not in done.stderr


def test_a_slow_driver_is_waited_for_and_an_old_one_is_understood(machine: Machine) -> None:
    machine.set("fault.slow=5", "driver.old=1")
    with machine.occupied("0", "8G") as process:
        device = machine.json("status")["devices"][0]
        assert [seen["pid"] for seen in device["processes"]] == [process.pid]


def test_no_driver_at_all_names_the_simulation(machine: Machine) -> None:
    bare = {name: value for name, value in machine.environ.items() if name != "GPULEASE_SIMULATION"}
    done = subprocess.run(machine.words("status"), env=bare, capture_output=True, text=True)
    assert done.returncode == 69
    assert "gpulease simulate" in done.stderr


@pytest.mark.parametrize("value", ["-1", "x", "4:nosuch", "1000", "2.5"])
def test_a_wrong_simulate_variable_is_a_usage_error(machine: Machine, value: str) -> None:
    bare = {name: value for name, value in machine.environ.items() if name != "GPULEASE_SIMULATION"}
    done = subprocess.run(
        machine.words("status"), env={**bare, "GPULEASE_SIMULATE": value}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["status", "--watch", "0"], ["status", "--watch", "x"], ["status", "extra"], ["stats"]]
)
def test_wrong_usage_is_code_2(machine: Machine, words: list[str]) -> None:
    done = machine.run(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_neighbours_are_known(machine: Machine) -> None:
    machine.set("gpu.0.group=a", "gpu.1.group=a", "gpu.2.group=b", "gpu.3.group=b")
    groups = [device["group"] for device in machine.json("status")["devices"]]
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_a_fresh_look_is_newer_than_the_brokers_and_keeps_what_only_the_broker_knows(machine: Machine) -> None:
    lease = json.loads(machine.run("get", "--devices", "1", "--for", "1h", "--json").stdout)["id"]
    for load in range(10, 20):  # the broker looks once a second: it cannot have seen all of these
        machine.set(f"gpu.0.utilization={load}", f"gpu.1.utilization={load}")
        asked = time.time()
        shown = machine.json("status", "--fresh")
        assert [device["utilization"] for device in shown["devices"][:2]] == [load, load]
        assert shown["time"] >= asked
    with machine.occupied("0"):
        shown = machine.json("status", "--fresh")
        assert [device["state"] for device in shown["devices"]] == ["outside", "leased", "free", "free"]
    assert machine.json("status", "--fresh")["devices"][0]["state"] == "free"
    assert (shown["devices"][1]["leases"], shown["leases"][0]["id"]) == ([lease], lease)
    machine.run("stop")
