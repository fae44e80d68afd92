"""`gpulease select` and `gpulease.select`: everything that gpuselect does, on a live machine."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest
from support.machine import Machine

ECHO = [sys.executable, "-c", "import os; print(os.getpid(), os.environ.get('CUDA_VISIBLE_DEVICES'))"]


def uuids(machine: Machine) -> list[str]:
    return [device["uuid"] for device in machine.json("status")["devices"]]


def test_it_prints_only_idle_indices(machine: Machine) -> None:
    machine.set("gpu.1.utilization=40")
    with machine.occupied("0"):
        assert machine.run("select", "-n", "2").stdout == "2,3\n"
        done = machine.run("select", "--count", "3")
        assert done.returncode == 75, "they are in use, and will not always be"
        assert "3 asked for, 4 exist, 2 matched" in done.stderr
        assert "util=0 excluded 1" in done.stderr
        assert "processes=0 excluded 0" in done.stderr


def test_it_becomes_the_command_with_uuids_and_pci_order(machine: Machine) -> None:
    words = machine.words("select", "-d", "1,3", "-n", "2", "--", *ECHO)
    with subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, text=True) as process:
        text = process.communicate(timeout=60)[0].split()
    names = uuids(machine)
    assert text == [str(process.pid), f"{names[1]},{names[3]}"]


def test_the_exit_code_and_the_signal_are_the_commands_own(machine: Machine) -> None:
    assert machine.run("select", "--", "sh", "-c", "exit 7").returncode == 7
    assert machine.run("select", "--", "sh", "-c", "kill -TERM $$").returncode == -15


def test_sigpipe_is_as_the_command_expects_it(machine: Machine) -> None:
    done = machine.run("select", "--", "sh", "-c", "yes | head -1 >/dev/null; echo fine")
    assert (done.stdout, done.stderr) == ("fine\n", "")


def test_naming_devices_asks_for_all_of_them(machine: Machine) -> None:
    assert machine.run("select", "--devices", "2,0").stdout == "0,2\n"
    assert machine.run("select", "--devices", "2,0,2").stdout == "0,2\n"
    assert machine.run("select", "--devices", "0,2", "-n", "1").stdout in ("0\n", "2\n")
    with machine.occupied("2"):
        assert machine.run("select", "--devices", "0,2").returncode == 75


def test_thresholds_may_be_fractions(machine: Machine) -> None:
    for gpu in range(4):
        machine.set(f"gpu.{gpu}.utilization={7 + gpu}")
    assert machine.run("select", "--util", "7.5").stdout == "0\n"
    assert "util=7.5 excluded 1" in machine.run("select", "--util", "7.5", "-n", "2").stderr
    assert machine.run("select", "--util", "nan").returncode == 2


def test_embedding_and_export(machine: Machine) -> None:
    text = f'eval "$({shlex.join(machine.words("select", "-d", "2", "--export"))})"; echo $CUDA_VISIBLE_DEVICES'
    done = subprocess.run(["sh", "-c", text], env=machine.environ, capture_output=True, text=True)
    assert done.stdout.strip() == uuids(machine)[2]
    assert machine.run("select", "-d", "2", "--uuid").stdout.strip() == uuids(machine)[2]


def test_a_lost_gpu_never_breaks_the_others(machine: Machine) -> None:
    machine.set("gpu.0.lost=1")
    assert machine.run("select", "-n", "3").stdout == "1,2,3\n"
    done = machine.run("select", "-n", "4")
    assert "0 is lost" in done.stderr


def test_an_unknown_value_passes_no_threshold_until_the_rule_is_left_out(machine: Machine) -> None:
    for gpu in range(4):
        machine.set(f"gpu.{gpu}.utilization=none")
    done = machine.run("select")
    assert done.returncode == 1
    assert "(unknown)" in done.stderr
    assert machine.run("select", "--util", "any", "--mem-util", "any").returncode == 0


def test_visible_narrows_the_choice(machine: Machine) -> None:
    assert machine.run("select", "--visible", CUDA_VISIBLE_DEVICES="3").stdout == "3\n"
    assert machine.run("select", "--visible", CUDA_VISIBLE_DEVICES="").returncode == 1
    done = machine.run("select", "--visible", CUDA_VISIBLE_DEVICES="garbage")
    assert (done.returncode, done.stderr.count("\n")) == (2, 2)


def test_debug_says_what_was_seen(machine: Machine) -> None:
    done = machine.run("select", "--debug")
    assert done.stderr.count("gpulease: saw") == 4
    assert "gpulease: selected" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["-n", "9"], 1, "4 exist"),
        (["-n", "-1"], 2, "at least 1"),
        (["-n", "0"], 2, "at least 1"),
        (["-n", "two"], 2, "--help"),
        (["--name", "H100"], 1, "The models here are: NVIDIA A100"),
        (["-d", "7"], 2, "there are 0, 1, 2, 3"),
        (["-d", ""], 2, "empty"),
        (["--util", "-5"], 2, "0 or more"),
        (["--util", "lots"], 2, "--help"),
        (["--min-memory", "lots"], 2, "6G"),
        (["--", "no-such-command"], 1, "does not exist"),
        (["--", "/etc/passwd"], 1, "may not be run"),
        (["--json", "--", "true"], 2, "Leave one"),
        (["--order", "taste"], 2, "--help"),
    ],
)
def test_bad_input_has_its_code_and_two_sentences(machine: Machine, words: list[str], code: int, said: str) -> None:
    done = machine.run("select", *words)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 2
    assert "Traceback" not in done.stderr


def test_silent_says_nothing(machine: Machine) -> None:
    done = machine.run("select", "-n", "9", "--silent")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


PROGRAM = """
import logging, os
import gpulease
from gpulease.errors import NotEnoughDevices

text = gpulease.select(devices=[1, 2])
assert text == "1,2", text
assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
chosen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
shown = gpulease.status(only_visible=True)["devices"]
assert [device["uuid"] for device in shown] == chosen
assert [device["index"] for device in shown] == [1, 2]
assert len(gpulease.status()["devices"]) == 4
assert gpulease.select(devices=0, set_environment=False) == "0"
assert os.environ["CUDA_VISIBLE_DEVICES"].split(",") == chosen
assert gpulease.select(1, [2], "a100", 7.5, 0.5, 1, None, True, set_environment=False) == "2"  # gpuselect's order
assert gpulease.select(count=9, silent=True) == ""
try:
    gpulease.select(count=9)
except NotEnoughDevices as error:
    assert error.fields["exist"] == 4
else:
    raise AssertionError("nine of four")
assert gpulease.select(selector=lambda gpu: gpu.device == 3 and "A100" in gpu.name) == "3"
seen = {}
gpulease.select(4, selector=lambda gpu: seen.setdefault(gpu.device, gpu))
gpu = seen[3]
assert gpu.memory_total == gpu.mem_total == 80 << 30 == gpu.memory_free + gpu.memory_used == gpu.mem_free + gpu.mem_used
assert (gpu.temperature, gpu.power, gpu.power_usage, gpu.performance_state) == (71, 250_000, 250_000, 2)
assert (gpu.fan_speed, gpu.power_limit, gpu.effective_power_limt) == (45, 300_000, 300_000)
assert (gpu.throttling, gpu.is_throttling) == (("sw_power_cap",), True)
assert seen[0].fan_speed is None and seen[0].throttling == ()
for wrong in (0, -1, True, "two", 1.5):
    try:
        gpulease.select(wrong)
    except ValueError as error:
        assert error.exit_code == 2
    else:
        raise AssertionError(wrong)
logging.basicConfig(level=logging.DEBUG)
gpulease.select()
print("done")
"""


def test_the_python_functions_do_the_same(machine: Machine) -> None:
    machine.set("gpu.3.temperature=71", "gpu.3.power=250W", "gpu.3.performance_state=P2", "gpu.3.fan=45")
    machine.set("gpu.3.power_limit=300W", "gpu.3.throttling=sw_power_cap")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=machine.environ, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
    assert "DEBUG:gpulease:selected" in done.stderr


LOGGING = """
import logging, gpulease
gpulease.select(set_environment=False)  # nobody asked
logging.getLogger("gpulease").setLevel(logging.DEBUG)
gpulease.select(devices=1, set_environment=False)
logging.basicConfig(format="root %(message)s")
gpulease.select(devices=2, set_environment=False)
"""


def test_setting_the_loggers_level_is_enough_and_nothing_is_said_twice(machine: Machine) -> None:
    done = subprocess.run([sys.executable, "-c", LOGGING], env=machine.environ, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if "selected" in line]
    assert said == ["gpulease: selected 1", "root selected 2"]


def test_the_module_file_stays_importable_without_a_driver() -> None:
    done = subprocess.run([sys.executable, "-c", "import gpulease; print(dir(gpulease))"], env=dict(os.environ))
    assert done.returncode == 0
