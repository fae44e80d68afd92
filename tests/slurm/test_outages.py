"""Slurm's controller dies, restarts and forgets; nothing that was queued is lost, and nothing runs twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.slurm_box import LONG, SlurmBox, needs_slurm
from support.waiting import wait_until

pytestmark = needs_slurm


@pytest.fixture
def box() -> Iterator[SlurmBox]:
    made = SlurmBox(more="MessageTimeout=2\nSlurmctldTimeout=2\nSlurmdTimeout=30")
    yield made
    made.close()


def resumed(box: SlurmBox) -> bool:
    """As an administrator does: Slurm drains a node that has a job which was started after the last saved state."""
    for name in box.slurm("sinfo", "-h", "-N", "-t", "drain,down", "-o", "%N", check=False).split():
        box.slurm("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
    return True


def notes_of(box: SlurmBox, ending: str = "") -> int:
    """How many jobs have noted that they ended, or that they began."""
    names = [path.name for path in box.folder.glob("state-root/gpulease/*/ends/*")]
    return sum(name.endswith(".began") == (ending != "") for name in names)


@pytest.mark.long("slurm")
@pytest.mark.timeout(400)
def test_each_of_200_runs_once_though_the_controller_is_killed_in_the_middle(box: SlurmBox) -> None:
    runs = box.folder / "work" / "runs"
    runs.mkdir()
    runs.chmod(0o1777)
    ids = box.add("--sweep", "i=1:200", "--label", "many", "--", "sh", "-c", f"echo $$ >>{runs}/{{i}}").splitlines()
    assert len(ids) == 200
    words = [sys.executable, "-m", "gpulease", "wait", "--label", "many"]
    with subprocess.Popen(words, env=box.environ, stdout=subprocess.PIPE, text=True) as waiting:
        wait_until(lambda: len(list(runs.iterdir())) >= 30, LONG, 0.05)
        box.kill("slurmctld")
        assert len(list(runs.iterdir())) < 200
        wait_until(lambda: notes_of(box, ".began") == notes_of(box), LONG, 0.1)
        box.start_controller()
        wait_until(lambda: resumed(box) and waiting.poll() is not None, 4 * LONG, 0.5)
        assert waiting.communicate()[0] == "200 complete\n"
    assert {path.name for path in runs.iterdir()} == {str(number) for number in range(1, 201)}
    assert all(len(path.read_text().splitlines()) == 1 for path in runs.iterdir())


@pytest.mark.long("slurm")
def test_while_the_controller_is_away_it_is_told_what_is_known_and_what_runs_goes_on(box: SlurmBox) -> None:
    gate, done = box.folder / "work" / "gate", box.folder / "work" / "done"
    runs = box.add("--", "sh", "-c", f"until test -e {gate}; do sleep 0.1; done; touch {done}")
    box.until(runs, "running")
    box.kill("slurmctld")
    reply = box.run("ls")
    assert reply.returncode == 69
    assert "controller does not answer" in reply.stderr
    assert "ago you had these jobs: 1 running." in reply.stderr
    assert "go on without it" in reply.stderr
    refused = box.run("add", "--", "true")
    assert (refused.returncode, refused.stdout) == (69, "")
    gate.touch()
    wait_until(done.exists, LONG, 0.1)
    box.start_controller()
    assert box.run("wait", runs).returncode == 0
    assert len(box.json("ls", "--all")["jobs"]) == 1  # what was refused was not queued


@pytest.mark.long("slurm")
def test_a_job_that_slurm_has_forgotten_is_known_by_what_was_recorded(box: SlurmBox) -> None:
    ids = box.add("--sweep", "i=0:2", "--name", "kept", "--", "sh", "-c", "echo {i} was here; exit {i}").splitlines()
    box.run("wait", *ids)
    before = [box.job(id) for id in ids]
    box.kill("slurmctld")
    box.start_controller("-c")  # with an empty memory
    wait_until(lambda: box.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", LONG, 0.1)
    assert box.slurm("squeue", "-h", "--states=all") == ""
    after = [box.job(id) for id in ids]
    same = ("id", "state", "exit_code", "command", "name", "log", "user", "cwd")
    assert [{name: job[name] for name in same} for job in after] == [
        {name: job[name] for name in same} for job in before
    ]
    assert box.ok("log", ids[1]) == "1 was here\n"
    assert box.run("wait", ids[2]).returncode == 2
    assert [event["what"] for event in box.json("events", "--job", ids[2])["events"]] == ["granted", "ended"]
    unknown = box.run("show", "4711")
    assert (unknown.returncode, "Slurm forgets ended jobs" in unknown.stderr) == (1, True)
    box.ok("clean", "--all")
    assert box.json("ls", "--all")["jobs"] == []


@pytest.mark.long("slurm")
def test_a_job_whose_id_slurm_gave_before_is_another_job_and_runs(box: SlurmBox) -> None:
    first = box.add("--name", "first", "--", "true")
    assert box.run("wait", first).returncode == 0
    box.kill("slurmctld")
    for path in (box.folder / "saved").iterdir():  # its state is lost, with the last id
        if path.is_file():
            path.unlink()
    box.start_controller("-c")
    wait_until(lambda: box.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", LONG, 0.1)
    second = box.add("--hold", "--name", "second", "--", "touch", "ran")
    assert second == first
    box.ok("kill", second)
    assert [(job["name"], job["state"]) for job in box.json("ls", "--all")["jobs"]] == [("second", "killed")]
    again = box.ok("retry", second).split()[-1]
    assert box.run("wait", again).returncode == 0
    assert (box.folder / "work" / "ran").exists()


@pytest.mark.long("slurm")
def test_a_partition_without_gpus_is_told_of() -> None:
    bare = "NodeName=bare NodeAddr=127.0.0.1 Port=1 CPUs=1 State=DOWN\nPartitionName=bare Nodes=bare State=UP"
    box = SlurmBox(more=bare)
    try:
        refused = box.run("add", "--", "true", environ={"GPULEASE_SLURM_OPTIONS": "--partition=bare"})
        assert refused.returncode == 1
        assert "No node of Slurm can ever serve this request." in refused.stderr
        assert len(box.json("status")["devices"]) == 8  # a node without GPUs has no rows
    finally:
        box.close()
