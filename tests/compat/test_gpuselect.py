"""What gpuselect printed, the drop-in prints, or what its document says; and what a lease adds to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from support.compat_machines import CompatMachines, compat_machines
from support.drop_ins import old_python
from support.recorded import Call, calls_of, recorded_of
from support.site import Site
from support.waiting import wait_until

RECORDED = recorded_of("gpuselect")
CALLS = calls_of("gpuselect")
FOR_OLD_PYTHON = ("the state of GPUs", "the command runs another")


@pytest.fixture(scope="module")
def machines() -> Iterator[CompatMachines]:
    with compat_machines() as made:
        yield made


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_prints_what_it_printed(call: Call, machines: CompatMachines) -> None:
    printed, said = machines.make(call, sys.executable)
    assert printed == call.expected(RECORDED[call.name]), said


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.6 here")
@pytest.mark.parametrize("call", [call for call in CALLS if call.name in FOR_OLD_PYTHON], ids=lambda call: call.name)
def test_and_with_old_python(call: Call, machines: CompatMachines) -> None:
    printed, said = machines.make(call, old_python() or "")
    assert printed == call.expected(RECORDED[call.name]), said


HOLD = """
import os, sys
from gpuselect import gpuselect
for line in sys.stdin:
    print(gpuselect(devices=[int(part) for part in line.split()]), flush=True)
"""
FANLESS = """
from gpuselect import gpuselect, gpustatus
print(gpustatus()[0].fan_speed, len(gpuselect(2, selector=lambda gpu: gpu.util == 0).split(",")))
print(gpuselect(selector=lambda gpu: gpu.fan_speed < 50, silent=True) == "")
"""
OUTER = """
import os
from gpuselect import gpuselect
from safe_gpu import safe_gpu
outer = os.environ["GPULEASE_DEVICES"].split(",")
print(sorted(gpuselect(2).split(",")) == outer, os.environ["GPULEASE_LEASE"])
print([str(number) for number in safe_gpu.GPUOwner(2, lambda device_no: None).devices_taken] == outer)
"""


def held(site: Site) -> dict[int, list[str]]:
    return {lease["pid"]: lease["labels"] for lease in site.json("status")["leases"]}


def test_a_command_holds_its_gpu_and_nobody_selects_it(machines: CompatMachines) -> None:
    site = machines.site(Call("four"))
    environ = machines.environ(site, sys.executable)
    with site.popen(["gpuselect", "-d", "2", "--", "cat"], env=environ) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        assert command.stdout.readline() == "Running: ['cat']\n"
        assert held(site) == {command.pid: ["2"]}
        asked = Call("four", command="gpuselect -c 4; gpuselect -d 2 -p 9")
        printed, said = machines.make(asked, sys.executable, beside=True)
        assert (printed.stdout, printed.code, said.count("\n")) == ("", 1, 2)
        assert "Requested 4 GPUs, but 3 matched filters" in said
        command.stdin.close()
    wait_until(lambda: held(site) == {})


def test_a_process_holds_what_it_sees_and_a_second_call_replaces_the_first(machines: CompatMachines) -> None:
    site = machines.site(Call("four"))
    with site.popen([sys.executable, "-c", HOLD], env=machines.environ(site, sys.executable)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for asked in ("0", "0", "0 1", "3", "3 1 2"):
            process.stdin.write(f"{asked}\n")
            process.stdin.flush()
            assert process.stdout.readline().split(",") == [*asked.split()[:-1], f"{asked.split()[-1]}\n"]
            assert {pid: sorted(labels) for pid, labels in held(site).items()} == {process.pid: sorted(asked.split())}
        process.stdin.close()
    wait_until(lambda: held(site) == {})


def test_in_a_lease_its_own_gpus_are_selected_and_no_second_lease_is_taken(machines: CompatMachines) -> None:
    site = machines.site(Call("four"))
    environ = machines.environ(site, sys.executable)
    words = site.words("run", "-n", "2", "--devices", "1,3", "--", sys.executable, "-c", OUTER)
    reply = site.popen(words, env=environ).communicate(timeout=60)
    lease = reply[0].split()[1]
    assert reply[0] == f"True {lease}\nTrue\n", reply[1]
    assert [event["id"] for event in site.json("events")["events"] if event["what"] == "granted"][-1] == lease


def test_a_command_that_is_not_there_is_named(machines: CompatMachines) -> None:
    printed, said = machines.make(Call("four", command="gpuselect -- nosuchcmd"), sys.executable)
    assert (printed.code, said) == (1, "gpuselect: nosuchcmd: No such file or directory\n")


def test_a_card_without_a_fan_breaks_nothing(machines: CompatMachines) -> None:
    printed, said = machines.make(Call("fanless", program=FANLESS), sys.executable)
    assert printed.stdout == "None 2\nTrue\n", said


def test_compat_is_the_function_and_the_module(machines: CompatMachines) -> None:
    code = "from gpulease.compat import gpuselect as g; print(g(devices=1), g.gpuselect(1, 2), g.GpuInfo(1, 'x').name)"
    printed, said = machines.make(Call("compat", program=code), sys.executable)
    assert printed.stdout == "1 2 x\n", said


ORDER = """
import os
from gpuselect import gpuselect
print(gpuselect(devices=1, set_cvd=False), os.environ.get("CUDA_DEVICE_ORDER"), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


def test_the_order_that_an_index_means_is_set_in_every_call(machines: CompatMachines) -> None:
    """Without it index 1 is another card on a machine of unlike GPUs: CUDA counts the fastest first."""
    printed, said = machines.make(Call("four", program=ORDER), sys.executable)
    assert printed.stdout == "1 PCI_BUS_ID None\n", said
