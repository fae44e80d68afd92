"""What safe-gpu printed, the drop-in prints; and what a lease adds to it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest
from support.compat_machines import CompatMachines, compat_machines
from support.drop_ins import old_python
from support.recorded import Call, calls_of, recorded_of
from support.waiting import wait_until

RECORDED = recorded_of("safe_gpu")
CALLS = calls_of("safe_gpu")


@pytest.fixture(scope="module")
def machines() -> Iterator[CompatMachines]:
    with compat_machines() as made:
        yield made


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_a_call_prints_what_it_printed(call: Call, machines: CompatMachines) -> None:
    printed, said = machines.make(call, sys.executable)
    assert printed == call.expected(RECORDED[call.name]), said


@pytest.mark.skipif(old_python() is None, reason="there is no Python 3.6 here")
@pytest.mark.parametrize("call", CALLS[:2], ids=lambda call: call.name)
def test_and_with_old_python(call: Call, machines: CompatMachines) -> None:
    printed, said = machines.make(call, old_python() or "")
    assert printed == call.expected(RECORDED[call.name]), said


HOLD = """
from safe_gpu import safe_gpu
safe_gpu.claim_gpus(2, lambda device_no: None)
print(*safe_gpu.gpu_owner.devices_taken, flush=True)
for line in __import__("sys").stdin:
    safe_gpu.release_gpus()
    print("released", flush=True)
"""
CLAIM = "from safe_gpu import safe_gpu; print(len(safe_gpu.GPUOwner({}).devices_taken))"
NO_TORCH = """
import re
import sys
sys.modules["torch"] = None
from safe_gpu import safe_gpu
print(safe_gpu.GPUOwner().placeholders)
try:
    safe_gpu.GPUOwner(1, safe_gpu.PytorchPlaceholder())
except ImportError:
    print(len(safe_gpu.get_free_gpus()))
"""


def test_a_claim_is_a_lease_until_it_is_released_or_its_process_ends(machines: CompatMachines) -> None:
    site = machines.site(Call("four"))
    words = [sys.executable, "-c", HOLD]
    with site.popen(words, env=machines.environ(site, sys.executable)) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        taken = holder.stdout.readline().split()
        leases = site.json("status")["leases"]
        assert [(lease["pid"], lease["labels"], lease["note"]) for lease in leases] == [(holder.pid, taken, "safe_gpu")]
        assert not set(site.run("get", "-n", "2", "--for", "1h").stdout.strip().split(",")) & set(taken)
        assert site.run("get", "--no-wait", "--for", "1h").returncode == 75
        holder.stdin.write("release\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "released\n"
        assert site.run("get", "-n", "2", "--for", "1h").stdout.strip().split(",") == taken
        holder.kill()
    assert site.run("release", "--mine").returncode == 0


def test_two_acquisitors_at_once_get_gpus_of_their_own(machines: CompatMachines) -> None:
    site = machines.site(Call("four"))
    environ = machines.environ(site, sys.executable)
    environ["GPULEASE_SIMULATION"] = str(site.state)
    both = [
        site.popen(["gpu-acquisitor", "--sleep", "0.2", "--id", f"{number}", "--nb-gpus", f"{number}"], env=environ)
        for number in (1, 2)
    ]
    said = [process.communicate(timeout=60)[1] for process in both]
    taken = [re.findall(r"Set CUDA_VISIBLE_DEVICES=([\d,]+)", text)[0].split(",") for text in said]
    assert [len(devices) for devices in taken] == [1, 2]
    assert not set(taken[0]) & set(taken[1])
    assert all("Finished" in text for text in said)


def test_a_gpu_that_was_left_a_moment_ago_is_found(machines: CompatMachines) -> None:
    """The broker looks at the devices once a second, and safe-gpu at each call."""
    call = Call("left", program=CLAIM.format(4))
    site = machines.site(call)
    with site.occupied("0,1,2,3"):
        wait_until(lambda: {device["state"] for device in site.json("status")["devices"]} == {"outside"})
    printed, said = machines.make(call, sys.executable)
    assert printed.stdout == "4\n", said


def test_without_pytorch_the_lease_holds_and_a_placeholder_that_was_asked_for_fails(machines: CompatMachines) -> None:
    printed, said = machines.make(Call("none", program=NO_TORCH), sys.executable)
    assert printed.stdout == "[None]\n3\n", said


def test_a_display_that_only_nvidia_smi_tells_of_counts(machines: CompatMachines) -> None:
    call = Call("display", gpus=1)
    site = machines.site(call)
    programs = site.folder / "programs"
    programs.mkdir()
    (programs / "nvidia-smi").write_text("#!/bin/sh\necho 'Attached GPUs : 1'\necho '  Display Mode   : Enabled'\n")
    (programs / "nvidia-smi").chmod(0o755)
    environ = machines.environ(site, sys.executable)
    environ["PATH"] = f"{programs}:{environ['PATH']}"
    code = "from safe_gpu import safe_gpu; print(safe_gpu.GPUOwner(1, lambda device_no: None).devices_taken)"
    with site.occupied("0"):
        printed, said = site.popen([sys.executable, "-c", code], env=environ).communicate(timeout=60)
    assert printed == "[0]\n", said


def test_the_import_from_gpulease_itself(machines: CompatMachines) -> None:
    code = """
from gpulease.compat import safe_gpu
safe_gpu.claim_gpus(2, lambda device_no: device_no)
print(len(safe_gpu.gpu_owner.devices_taken), safe_gpu.gpu_owner.placeholders)
safe_gpu.release_gpus()
print(len(safe_gpu.get_free_gpus()))
"""
    printed, said = machines.make(Call("compat", program=code), sys.executable)
    assert printed.stdout == "2 [0, 1]\n4\n", said
