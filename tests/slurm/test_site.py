"""A site as `doctor` and `explain` see it: folders that nodes lack, drained nodes, several nodes for a job."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from support.slurm_box import LONG, SlurmBox, box, needs_slurm  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

pytestmark = needs_slurm


def findings(told: str) -> dict[str, tuple[str, str]]:
    return {one["subject"]: (one["level"], one["text"]) for one in json.loads(told)["findings"]}


def test_the_doctor_looks_at_slurm_and_at_its_nodes(box: SlurmBox) -> None:  # noqa: F811
    found = findings(box.ok("doctor", "--json"))
    levels = {subject: level for subject, (level, _) in found.items()}
    assert levels == dict.fromkeys(
        ("gpulease", "python", "nvidia-ml-py", "controller", "partition", "GPUs", "accounting", "records", "clocks"),
        "ok",
    )
    assert found["GPUs"][1] == "8 a100, on 2 nodes"
    assert found["records"][1].endswith("is there on node[1-2]")
    assert len(box.ok("doctor").splitlines()) < 20


def test_the_doctor_finds_a_folder_that_the_nodes_do_not_have(box: SlurmBox) -> None:  # noqa: F811
    """As on a machine with a home of its own: a mount that only this process sees."""
    words = f"mount -t tmpfs none {box.folder}/state-root && exec {sys.executable} -m gpulease doctor --json"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words], env=box.environ, capture_output=True, text=True, timeout=LONG
    )
    level, text = findings(done.stdout)["records"]
    assert (done.returncode, level) == (69, "error")
    assert "is not there on node[1-2]: jobs there cannot start" in text


@pytest.mark.parametrize(
    ("options", "what"), [("--partition=none", "there is no partition none"), ("-p none", "there is no partition none")]
)
def test_the_doctor_names_a_partition_that_is_not_there(box: SlurmBox, options: str, what: str) -> None:  # noqa: F811
    done = box.run("doctor", "--json", environ={"GPULEASE_SLURM_OPTIONS": options})
    assert (done.returncode, findings(done.stdout)["partition"]) == (69, ("error", what))


def test_a_drained_node_may_serve_later(box: SlurmBox) -> None:  # noqa: F811
    box.slurm("scontrol", "update", "NodeName=node[1-2]", "State=DRAIN", "Reason=fan")
    try:
        reply = box.json("explain", "-n", "2")
        assert (reply["possible"], reply["starts"]) == (True, [None])
        assert reply["why"] == (
            "The nodes that could serve it give no GPUs now: node node1 is drained: fan; node node2 is drained: fan."
        )
        assert "can ever" not in box.ok("explain", "-n", "2")
        assert box.json("explain", "-n", "9")["possible"] is False
        assert findings(box.run("doctor", "--json").stdout)["nodes"] == ("warning", "node[1-2] are drained: fan")
    finally:
        box.slurm("scontrol", "update", "NodeName=node[1-2]", "State=RESUME")
        wait_until(lambda: box.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "2", LONG, 0.1)


def test_a_job_has_as_many_nodes_as_its_user_asks_for(box: SlurmBox) -> None:  # noqa: F811
    options = {"GPULEASE_SLURM_OPTIONS": "--nodes=2"}
    id = box.add("-n", "2", "--", "srun", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES", environ=options)
    assert box.until(id, "complete", "failed")["state"] == "complete"
    assert sorted(box.ok("log", id).splitlines()) == ["node1 0,1", "node2 0,1"]


@pytest.mark.parametrize("verb", ["top", "web", "metrics", "learned", "notify", "rebalance"])
def test_a_verb_that_shows_another_machine_is_refused(box: SlurmBox, verb: str) -> None:  # noqa: F811
    refused = box.run(verb)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 2)
    assert (refused.stdout, "lurm" in refused.stderr, "cannot do" in refused.stderr) == ("", True, False)
