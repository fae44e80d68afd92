"""How jobs end on Slurm: killed, preempted, without a place for their output, forgotten."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.slurm_box import LONG, SlurmBox, needs_slurm
from support.waiting import wait_until

pytestmark = needs_slurm
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF"""
# Notes a SIGTERM and writes a checkpoint for a moment; begun again from one it ends at once.
PROGRAM = """
import os, signal, sys, time
def end(number, frame):
    os.write(1, b"heard\\n")
    time.sleep(0.5)
    open("checkpoint", "w").close()
    os.write(1, b"saved\\n")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
os.write(1, b"began\\n")
time.sleep(0 if os.path.exists("checkpoint") else 600)
os.write(1, b"over\\n")
"""


@pytest.fixture(scope="module")
def box() -> Iterator[SlurmBox]:
    """With control groups where this machine has those that Slurm needs no service manager for."""
    made = SlurmBox(more=PREEMPTION, cgroups=os.path.isdir("/sys/fs/cgroup/freezer"))
    yield made
    made.close()


def start(box: SlurmBox, *words: str) -> str:
    """The id of the program, once it handles signals."""
    (box.folder / "work" / "checkpoint").unlink(missing_ok=True)
    id = box.add(*words, "--", sys.executable, "-c", PROGRAM)
    wait_until(lambda: "began" in box.run("log", id).stdout, LONG, 0.1)
    return id


def log_of(box: SlurmBox, id: str) -> list[str]:
    return [line for line in box.ok("log", id).splitlines() if "slurmstepd" not in line]


@pytest.mark.parametrize("retry", ["0", "2"])
def test_a_job_that_is_killed_saves_its_work_and_is_not_tried_again(box: SlurmBox, retry: str) -> None:
    id = start(box, "--retry", retry)
    box.ok("kill", id, "--wait")
    job = box.until(id, "killed")
    assert (job["tries"], job["exit_code"]) == (1, None)
    wait_until(lambda: log_of(box, id) == ["began", "heard", "saved"], LONG, 0.1)  # a busy slurmd ends it too soon
    wait_until(lambda: not box.slurm("squeue", "-h"), LONG, 0.1)


def test_a_job_that_makes_room_saves_its_work_and_goes_back_into_the_line(box: SlurmBox) -> None:
    first = start(box, "-n", "4", "--name", "patient")
    other = box.add("-n", "4", "--", "sleep", "600")
    box.until(other, "running")
    options = {"GPULEASE_SLURM_OPTIONS": "--partition=urgent"}
    urgent = [box.add("-n", "4", "--", "sleep", "600", environ=options) for _ in range(2)]
    job = box.until(first, "waiting")
    assert (job["name"], job["tries"], job["exit_code"], job["ended"]) == ("patient", 1, None, None)
    box.ok("kill", *urgent, other)
    wait_until(lambda: not box.slurm("squeue", "-h", "-t", "completing", "-j", first), LONG, 0.1)
    ended = int(time.time())
    wait_until(lambda: time.time() >= ended + 1)  # its node refuses a start in the second in which it ended
    box.slurm("scontrol", "update", f"JobId={first}", "StartTime=now")  # Slurm lets it wait for two minutes
    assert box.run("wait", first).returncode == 0
    assert (job := box.job(first))["state"] == "complete", job
    assert job["tries"] == 2
    reply = [line for line in box.ok("log", first).splitlines() if "slurmstepd" not in line]
    assert reply == ["began", "heard", "saved", "began", "over"]


def test_a_job_whose_output_cannot_be_opened_says_so(box: SlurmBox) -> None:
    folder = box.folder / "work" / "apart"
    folder.mkdir()
    id = box.add("--hold", "--log", f"{folder}/", "--", "true")
    shutil.rmtree(folder)  # as on a node that has other folders than this one
    box.ok("resume", id)
    waited = box.run("wait", id)
    assert (waited.returncode, waited.stdout.partition(" ")[2][:7]) == (1, "invalid")
    job = box.job(id)
    assert (job["state"], job["exit_code"], job["signal"]) == ("invalid", None, None)
    assert "its output file could not be opened on the node node" in job["why"]
    assert f"is the folder {folder} there" in job["why"]
    shown = box.run("log", id)
    assert (shown.returncode, "could not be opened" in shown.stderr) == (1, True)


def test_rm_removes_no_file_that_another_users_job_names(box: SlurmBox) -> None:
    """Root removes jobs of others too; the place of their output is what those users wrote."""
    victim = box.folder / "victim.txt"
    victim.write_text("kept")
    logs = next(box.folder.glob("state-root/gpulease/*/logs"), None)
    if logs is None:
        box.ok("wait", box.add("--", "true"))
        logs = next(box.folder.glob("state-root/gpulease/*/logs"))
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sbatch", "--parsable"]
    words += ["--output", f"{logs}/../../../../victim.txt", f"--chdir={box.folder}/work", "--wrap=true"]
    theirs = box.slurm(*words).strip()
    box.until(theirs, "complete", "failed", "invalid")
    assert box.ok("rm", theirs) == f"removed {theirs}\n"
    assert victim.read_text() == "kept"
    mine = box.add("--", "echo", "mine")
    box.until(mine, "complete")
    assert (logs / f"{mine}.log").exists()
    box.ok("rm", mine)
    assert not (logs / f"{mine}.log").exists()


# In the place of sacct: accounting that knows one job which Slurm itself has forgotten.
SACCT = """#!/bin/sh
case "$*" in *--jobs=*770*) ;; *--jobs=*) exit 0 ;; esac
day=2026-11-18
echo "770|FAILED|3:0|${{day}}T00:31:10|${{day}}T00:35:10|node1|{user}|gres/gpu=2|${{day}}T00:30:00|{uid}|{work}|mine"
"""


def test_a_job_that_only_the_accounting_knows_is_shown(box: SlurmBox) -> None:
    folder, work = box.folder / "accounting", box.folder / "work"
    folder.mkdir()
    (folder / "sacct").write_text(SACCT.format(user="root", uid=0, work=work))
    (folder / "sacct").chmod(0o755)
    (work / "slurm-770.out").write_text("its output\n")
    path: Any = {"environ": {"PATH": f"{folder}:{box.environ['PATH']}"}}
    job = box.job("770", **path)
    assert (job["state"], job["exit_code"], job["name"], job["user"], job["uid"]) == ("failed", 3, "mine", "root", 0)
    assert job["request"]["gpus"] == 2
    assert box.ok("log", "770", **path) == "its output\n"
    assert "770" in [row["id"] for row in box.json("ls", "--all", **path)["jobs"]]
    assert "770" not in [row["id"] for row in box.json("ls", **path)["jobs"]]
    assert box.run("show", "771", **path).returncode == 1


def test_usage_says_whose_it_is(box: SlurmBox) -> None:
    theirs = box.add("--", "true", user="nobody")
    mine = box.add("--", "true")
    for id in (theirs, mine):
        box.until(id, "complete")
    reply = box.json("usage")  # there is no accounting
    assert (reply["everybody"], [row["name"] for row in reply["rows"]]) == (False, ["root"])
    title, note, *_ = box.ok("usage").splitlines()
    assert title.startswith("GPU-hours of your own from ")
    assert note == "Slurm's accounting is off, or does not answer: only your own jobs are known."
    folder = box.folder / "counting"
    folder.mkdir()
    (folder / "sacct").write_text("#!/bin/sh\nexit 0\n")
    (folder / "sacct").chmod(0o755)
    reply = box.json("usage", environ={"PATH": f"{folder}:{box.environ['PATH']}"})
    assert (reply["everybody"], reply["note"]) == (True, None)
    assert {"nobody", "root"} <= {row["name"] for row in reply["rows"]}
