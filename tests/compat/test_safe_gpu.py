"""What safe-gpu printed, the drop-in prints; and what a lease adds to it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.compat_machines import CompatMachines, compat_machines
from support.drop_ins import old_python
from support.recorded import Call, calls_of, recorded_of
from support.site import Site
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
import shlex
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
        site.popen([name, "--sleep", "0.2", "--id", f"{number}", "--nb-gpus", f"{number}"], env=environ)
        for number, name in ((1, "gpu-acquisitor"), (2, "gpu-acquisitor.py"))
    ]
    said = [process.communicate(timeout=60)[1] for process in both]
    taken = [re.findall(r"Set CUDA_VISIBLE_DEVICES=([\d,]+)", text)[0].split(",") for text in said]
    assert [len(devices) for devices in taken] == [1, 2]
    assert not set(taken[0]) & set(taken[1])
    assert all("Finished" in text for text in said)


def states(site: Site) -> list[str]:
    return [device["state"] for device in site.json("status")["devices"]]


def test_a_gpu_that_was_left_a_moment_ago_is_found(machines: CompatMachines) -> None:
    """The broker looks at the devices once a second, and safe-gpu at each call."""
    call = Call("left", program=CLAIM.format(4))
    site = machines.site(call)
    wait_until(lambda: states(site) == ["free"] * 4)  # what comes onto a GPU that drains would count as its lease's
    with site.occupied("0,1,2,3"):
        wait_until(lambda: states(site) == ["outside"] * 4)
    printed, said = machines.make(call, sys.executable)
    assert printed.stdout == "4\n", said


def test_without_pytorch_the_lease_holds_and_a_placeholder_that_was_asked_for_fails(machines: CompatMachines) -> None:
    printed, said = machines.make(Call("none", program=NO_TORCH), sys.executable)
    assert printed.stdout == "[None]\n3\n", said


def granted(site: Site) -> int:
    return sum(event["what"] == "granted" for event in site.json("events")["events"])


@pytest.mark.parametrize(("backend", "module"), [("pytorch", "torch"), ("tf", "tensorflow"), ("pycuda", "pycuda")])
def test_an_acquisitor_without_its_backend_takes_nothing_and_says_so(
    machines: CompatMachines, backend: str, module: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules['{module}'] = None\n")  # wherever it is
    site = machines.site(Call("four"))
    environ = machines.environ(site, sys.executable)
    ours = environ["PYTHONPATH"].partition(os.pathsep)[0]  # without those of the tests
    environ["PYTHONPATH"] = f"{ours}{os.pathsep}{tmp_path}"
    before = granted(site)
    process = site.popen(["gpu-acquisitor", "--sleep", "0", "--backend", backend], env=environ)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.fullmatch(rf"gpu-acquisitor: \w+ needs {module}, which is not installed here\. .*\n", said)
    assert granted(site) == before


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


# Holds the lock as safe-gpu does while it chooses, until the drop-in has asked for the third time.
BESIDE = """
import fcntl, os, subprocess, sys, time
from safe_gpu.safe_gpu import LOCK_FILENAME
folder, code = sys.argv[1:]
lock = open(LOCK_FILENAME, "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
claim = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
asked, until = "", time.monotonic() + 60
while asked.count("get") < 3 and claim.poll() is None and time.monotonic() < until:
    time.sleep(0.02)
    asked = open(folder + "/asked").read() if os.path.exists(folder + "/asked") else ""
print(claim.poll(), flush=True)
fcntl.lockf(lock, fcntl.LOCK_UN)
print(claim.communicate()[0], end="")
subprocess.run([*__import__("gpulease_shim").COMMAND, "stop"], stdout=subprocess.DEVNULL)
"""
NOTING = """
import sys
import gpulease_shim
gpulease_shim.COMMAND = ["/bin/sh", sys.argv[1] + "/gpulease"]
from safe_gpu import safe_gpu
print(len(safe_gpu.GPUOwner(2, lambda device_no: None).devices_taken))
"""


def test_while_somebody_chooses_with_safe_gpu_itself_it_waits(machines: CompatMachines) -> None:
    """The lock is one of the whole machine, so this is done where its folder is another one."""
    call = Call("beside", gpus=2)
    site = machines.site(call)
    folders = [site.folder / name for name in ("lock", "asked")]
    for folder in folders:
        folder.mkdir()
    noting = f'echo "$1" >> {folders[1]}/asked; exec {shlex.join(site.words())} "$@"'
    (folders[1] / "gpulease").write_text(noting)
    mount = f'mkdir -p -m 777 /tmp/safe_gpu; mount --bind {folders[0]} /tmp/safe_gpu || exit 99; exec "$@"'
    words = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-c", BESIDE, str(folders[1]), NOTING]
    process = site.popen(words, env=machines.environ(site, sys.executable))
    printed, said = process.communicate(timeout=100)
    if process.returncode in (1, 99) and not printed:
        pytest.skip(f"mounting is not permitted here: {said}")
    assert printed == "None\n2\n", said
