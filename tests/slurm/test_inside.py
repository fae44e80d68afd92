"""Inside a job of Slurm's, plain gpulease serves the GPUs of that allocation, and ends with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.machine import plain_environment
from support.slurm_box import LONG, SlurmBox, box, needs_slurm  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

from gpulease.model.allocation import allocation
from gpulease.model.values import Device
from gpulease.system.places import candidates, engine

GPULEASE = f"{sys.executable} -m gpulease"


@pytest.fixture
def script(box: SlurmBox) -> Iterator[Path]:  # noqa: F811
    """A file for a batch script, whose jobs see eight simulated GPUs."""
    path = box.folder / "work" / "batch.sh"
    yield path
    path.unlink(missing_ok=True)


def submit(box: SlurmBox, script: Path, text: str, gpus: int = 2, more: tuple[str, ...] = ()) -> tuple[str, Path]:  # noqa: F811
    """The id, and the file with the output."""
    script.write_text(f"#!/bin/bash\nexport GPULEASE_SIMULATE=8\nunset GPULEASE_ENGINE\n{text}\n")
    out = box.folder / "work" / "out"
    out.unlink(missing_ok=True)
    words = [
        "sbatch",
        "--parsable",
        f"--gres=gpu:{gpus}",
        f"--output={out}",
        f"--chdir={box.folder}/work",
        *more,
        str(script),
    ]
    return box.slurm(*words).strip(), out


def over(box: SlurmBox, id: str) -> bool:  # noqa: F811
    return not box.slurm("squeue", "-h", "-j", id, "-t", "PD,R,CG", check=False)


@needs_slurm
@pytest.mark.long("slurm")
def test_small_jobs_are_packed_into_an_allocation_and_only_its_gpus_are_served(box: SlurmBox, script: Path) -> None:  # noqa: F811
    other = box.add("-n", "1", "--", "sleep", "600")  # so that the allocation does not begin at GPU 0
    box.until(other, "running")
    id, out = submit(
        box,
        script,
        f"""
        {GPULEASE} status --json > status.json
        {GPULEASE} add --sweep i=1:12 --label packed -- sh -c 'echo $GPULEASE_DEVICES > packed.{{i}}' > ids
        {GPULEASE} wait --label packed
        echo $SLURM_JOB_GPUS
        {GPULEASE} run -n 3 --no-wait -- true
        echo $?""",
    )
    wait_until(lambda: over(box, id), LONG, 0.2)
    work = box.folder / "work"
    lines = out.read_text().splitlines()
    assert lines[0] == "12 complete", lines
    mine = lines[1].split(",")
    assert len(mine) == 2
    status = json.loads((work / "status.json").read_text())
    assert [str(device["index"]) for device in status["devices"]] == mine
    assert {(work / f"packed.{number}").read_text().strip() for number in range(1, 13)} == set(mine)
    assert lines[-1] == "1"  # three can never be granted of two
    box.run("kill", other)


@needs_slurm
def test_the_broker_and_its_jobs_end_with_the_allocation(box: SlurmBox, script: Path) -> None:  # noqa: F811
    id, _ = submit(
        box,
        script,
        f"""
        {GPULEASE} add -- sh -c 'echo $$ > pid; exec sleep 600'
        until test -s pid; do sleep 0.1; done
        {GPULEASE} status --json > status.json""",
    )
    work = box.folder / "work"
    wait_until(lambda: over(box, id), LONG, 0.2)
    broker = json.loads((work / "status.json").read_text())["broker"]
    for pid in (int((work / "pid").read_text()), broker["pid"]):
        wait_until(partial(_is_gone, pid), LONG, 0.1)
    wait_until(lambda: not os.path.exists(broker["directory"]), LONG, 0.1)


@needs_slurm
@pytest.mark.long("slurm")
def test_on_several_nodes_each_has_a_broker_and_any_spreads_over_them(box: SlurmBox, script: Path) -> None:  # noqa: F811
    work = box.folder / "work"
    id, out = submit(
        box,
        script,
        f"""
        {GPULEASE} add --host any --sweep i=1:4 -- \\
            sh -c 'echo $SLURMD_NODENAME $GPULEASE_DEVICES > spread.{{i}}' > spread
        {GPULEASE} wait $(cat spread) > waited
        {GPULEASE} status --hosts --json > hosts.json
        echo over""",
        more=("--nodes=2", "--ntasks=2"),
    )
    wait_until(lambda: over(box, id), LONG, 0.2)
    assert out.read_text().splitlines()[-1:] == ["over"], out.read_text()
    ids = (work / "spread").read_text().split()
    assert {one.partition(":")[0] for one in ids} == {"node1", "node2"}
    ran = [(work / f"spread.{number}").read_text().split() for number in range(1, 5)]
    assert [node for node, _ in ran] == [one.partition(":")[0] for one in ids]
    reply = json.loads((work / "hosts.json").read_text())
    assert [len(row["answer"]["devices"]) for row in reply["hosts"]] == [2, 2], reply
    wait_until(lambda: not list(Path("/tmp").glob(f"gpulease-*-slurm-{id}-*")), LONG, 0.2)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_environment_says_which_devices_are_the_allocations() -> None:
    devices = [Device(index, f"GPU-{index}", "A100") for index in range(4)]
    inside = {"SLURM_JOB_ID": "12", "SLURMD_NODENAME": "node1", "SLURM_JOB_GPUS": "1,3", "CUDA_VISIBLE_DEVICES": "0,1"}
    found = allocation(inside)
    assert found is not None
    assert [device.index for device in found.own(devices)] == [1, 3]
    assert [device.index for device in found.own(devices[:2])] == [0, 1]  # confined: the driver shows no others
    step = allocation({**inside, "SLURM_STEP_GPUS": "3"})
    assert step is not None
    assert step.name != found.name
    login = allocation({"SLURM_JOB_ID": "12", "CUDA_VISIBLE_DEVICES": "0"})
    assert login is not None
    assert login.own(devices) == []
    assert allocation({}) is None
    assert engine({**inside, "HOME": "/nowhere"}) == "local"
    assert engine({**inside, "GPULEASE_ENGINE": "slurm"}) == "slurm"
    (place,) = candidates({**inside, "SLURM_TMPDIR": "/scratch/12"})
    assert place.run == "/scratch/12/slurm-12-node1-1.3"


def test_beside_an_allocation_its_gpus_are_not_looked_for_here(tmp_path: Path) -> None:
    environ = {**plain_environment(), "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "node[1-2]", "GPULEASE_SIMULATE": "4"}
    environ |= {"GPULEASE_DIR": str(tmp_path), "GPULEASE_SIMULATION": ""}
    done = subprocess.run(
        [sys.executable, "-m", "gpulease", "status"], env=environ, capture_output=True, text=True, timeout=LONG
    )
    assert done.returncode == 69
    assert "No GPU of Slurm's job 12 is on this machine." in done.stderr
