"""Requests as arguments of Slurm's commands, and what these print as our rows: PURE, on recorded output."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpulease.errors import (
    NotEnoughDevices,
    NotFound,
    NotGranted,
    NotOnEngine,
    NotPermitted,
    SlurmRefused,
    SlurmUnavailable,
)
from gpulease.model.job_selection import ranges, selection, to_come_after
from gpulease.model.shell_text import quoted
from gpulease.render.usage import of_hosts
from gpulease.slurm import fields, options
from gpulease.slurm.add import batch_script, parts
from gpulease.slurm.commands import refusal
from gpulease.slurm.commands import run as run_command
from gpulease.slurm.jobs import chosen, named
from gpulease.slurm.known_jobs import read_accounting
from gpulease.slurm.rows import (
    SENTENCES,
    STATES,
    expected_start,
    ids_of,
    indices,
    job_row,
    lease_row,
    line_row,
    log_of,
    sentence,
    state_of,
)
from gpulease.slurm.status import _place, device_rows, gpu_types, matching_type, usage_piece

# One failed task of an array, as Slurm 22.05.8 prints it; what is not read is left out.
OLD: dict[str, Any] = {
    "array_job_id": 6, "array_task_id": 3, "array_max_tasks": 2, "array_task_string": "", "batch_flag": True,
    "cluster": "box", "comment": 'gpulease {"token":"ab","label":"sweep","retry":2}', "dependency": "",
    "end_time": 1794961873, "exit_code": 768, "gres_detail": ["gpu:a100:2(IDX:0,2)"], "job_id": 13,
    "job_state": "FAILED", "name": "train", "nodes": "node1", "nice": 200, "node_count": 1, "priority": 4294901757,
    "standard_output": "/logs/%A_%a.log", "start_time": 1794961871, "state_reason": "NonZeroExitCode",
    "submit_time": 1794961870, "time_limit": 90, "tres_per_job": "", "tres_per_node": "gres:gpu:a100:2",
    "user_id": 1000, "user_name": "ada", "current_working_directory": "/home/ada",
}  # fmt: skip


def as_number(value: int | None) -> dict[str, Any]:
    return {"set": value is not None, "infinite": False, "number": value or 0}


NUMBERS = ("array_job_id", "array_task_id", "array_max_tasks", "node_count", "priority", "time_limit")
TIMES = ("start_time", "end_time", "submit_time")
MIDDLE = {**OLD, **{name: as_number(OLD[name]) for name in NUMBERS}, "exit_code": as_number(768)}  # 23.02
NEW = {
    **MIDDLE,
    **{name: as_number(OLD[name]) for name in TIMES},
    "job_state": ["FAILED"],
    "exit_code": {
        "status": ["ERROR"],
        "return_code": as_number(3),
        "signal": {"id": as_number(None), "name": ""},
    },
}  # 23.11 and later


@pytest.mark.parametrize("raw", [OLD, MIDDLE, NEW], ids=["22.05", "23.02", "23.11"])
def test_a_job_is_the_same_row_in_the_shapes_of_every_version(raw: dict[str, Any]) -> None:
    assert ids_of(raw) == ["6_3"]
    row = job_row(raw, "6_3", {}, 1794961900.0)
    seen = {
        name: row[name]
        for name in ("id", "state", "exit_code", "user", "uid", "label", "log", "started", "ended", "time_limit")
    }
    assert seen == {
        "id": "6_3",
        "state": "failed",
        "exit_code": 3,
        "user": "ada",
        "uid": 1000,
        "label": "sweep",
        "log": "/logs/6_3.log",
        "started": 1794961871,
        "ended": 1794961873,
        "time_limit": 5400.0,
    }
    assert (row["request"]["gpus"], row["request"]["models"], row["request"]["priority"]) == (2, ["a100"], 7)
    running = {**raw, "job_state": ["RUNNING"] if raw is NEW else "RUNNING"}
    assert lease_row(running, "6_3", None)["labels"] == ["node1:0", "node1:2"]


def test_a_signal_is_told_from_a_code() -> None:
    assert fields.ended_with(9) == (None, 9)
    assert fields.ended_with({"return_code": as_number(0), "signal": {"id": as_number(15), "name": "TERM"}}) == (
        None,
        15,
    )
    assert fields.ended_with(None) == (None, None)


def test_the_waiting_tasks_of_an_array_are_one_record_and_many_ids() -> None:
    waiting = {**OLD, "array_task_id": None, "array_task_string": "4-7:2,9%2", "job_state": "PENDING"}
    assert ids_of(waiting) == ["6_4", "6_6", "6_9"]


def test_a_start_in_a_year_is_no_forecast() -> None:
    waiting = {**OLD, "job_state": "PENDING", "state_reason": "Resources", "start_time": 1_000_000 + 3600}
    assert expected_start(waiting, 1_000_000.0) == 1_003_600
    assert expected_start({**waiting, "start_time": 1_000_000 + 366 * 86400}, 1_000_000.0) is None
    assert expected_start({**waiting, "start_time": {"set": True, "number": 0}}, 1_000_000.0) is None


def test_each_reason_is_a_sentence_and_limits_are_read_by_their_system() -> None:
    assert all(text[0].isupper() and text.endswith(".") for text in SENTENCES.values())
    assert sentence("QOSMaxGRESPerUser") == (
        "A limit on GPUs of one job of one user of its quality of service (QOS) is reached (QOSMaxGRESPerUser)."
    )
    assert sentence("Dependency", "afterok:12(unfulfilled),afterok:13_*(unfulfilled)").endswith(": 12, 13_*.")
    assert sentence("SomethingNew") == "Slurm's reason is SomethingNew."
    assert line_row({**OLD, "state_reason": "ReqNodeNotAvail, UnavailableNodes:n1"}, "6", 0.0)["why"].startswith(
        "A node"
    )


def test_what_was_killed_while_it_waited_never_began() -> None:
    row = job_row({**OLD, "job_state": "CANCELLED", "nodes": "", "start_time": 5, "end_time": 5}, "6_3", {}, 0.0)
    assert (row["state"], row["started"], row["runs"]) == ("killed", None, 0)


def test_every_state_of_slurm_is_one_of_ours() -> None:
    from gpulease.model.job_selection import STATES as OURS

    assert set(STATES.values()) <= set(OURS)
    assert job_row({**OLD, "job_state": "PENDING", "state_reason": "JobHeldUser"}, "6_3", {}, 0.0)["state"] == "held"


def test_a_killed_job_runs_until_slurm_has_ended_it() -> None:
    """`kill --wait` came back while the job still wrote its checkpoint."""
    assert state_of({"job_state": ["CANCELLED", "COMPLETING"]}) == "running"
    assert state_of({"job_state": ["CANCELLED"]}) == "killed"
    assert state_of({"job_state": ["FAILED", "COMPLETING"]}) == "failed"


def test_hosts_and_indices_are_read_as_slurm_writes_them() -> None:
    assert fields.hosts("gpu[01-03,7],login") == ["gpu01", "gpu02", "gpu03", "gpu7", "login"]
    assert indices("gpu:a100:3(IDX:0-1,3),gpu:v100:1(IDX:5)") == ["0", "1", "3", "5"]
    assert indices("gpu:a100:0(IDX:N/A)") == []
    assert gpu_types("gpu:a100:4(S:0-1),gpu:v100:2,shard:8") == [("a100", 4), ("v100", 2)]


def test_nodes_are_devices_with_their_holders_and_troubles() -> None:
    leases = [lease_row({**OLD, "job_state": "RUNNING"}, "6_3", None)]
    there: list[dict[str, Any]] = [
        {
            "name": "node1",
            "gres": "gpu:a100:3",
            "state": "mixed",
            "state_flags": [],
            "gres_used": "gpu:a100:2(IDX:0,2)",
        },
        {"name": "node2", "gres": "gpu:a100:1", "state": ["IDLE", "DRAIN"], "reason": "fan"},
        {"name": "node3", "gres": "gpu:a100:1", "state": "down", "state_flags": ["NOT_RESPONDING"]},
        {"name": "login", "gres": "", "state": "idle"},
    ]
    rows = device_rows(there, leases)
    assert [(row["label"], row["state"], row["leases"]) for row in rows] == [
        ("node1:0", "leased", ["6_3"]),
        ("node1:1", "free", []),
        ("node1:2", "leased", ["6_3"]),
        ("node2:0", "excluded", []),
        ("node3:0", "lost", []),
    ]
    assert rows[3]["note"] == "node node2 is drained: fan"
    assert matching_type("A100", there) == "a100"
    assert matching_type("a100", [{"gres": "gpu:nvidia_a100-sxm4-80gb:4"}]) == "nvidia_a100-sxm4-80gb"
    assert matching_type("H100", there) is None


def test_a_request_becomes_arguments_and_what_slurm_cannot_do_is_refused() -> None:
    request = {"gpus": 2, "priority": 7}
    job_options = {"cwd": "/w", "time_limit": 61.0, "hold": True, "at_most": 8, "after_any": True}
    words = options.batch(request, job_options, "a100", 100, ["12", "13_2"], "/logs/%A_%a.log")
    assert words[0] == "sbatch"
    for word in (
        "--gres=gpu:a100:2", "--nice=200", "--time=2", "--hold", "--array=0-99%8", "--chdir=/w", "--no-requeue",
        "--dependency=afterany:12:13_2", "--output=/logs/%A_%a.log",
    ):  # fmt: skip
        assert word in words
    for field in ("memory", "devices", "min_memory", "pack"):
        with pytest.raises(NotOnEngine):
            options.resources({"gpus": 1, field: ["x"]}, None)
    assert not any("gres" in word for word in options.resources({"gpus": 0}, None))
    assert options.pattern("/a/100%/", "/logs", 5) == "/a/100%%/%A_%a.log"
    assert options.changes({"time_limit": None, "request": {"priority": 5}}, []) == ["TimeLimit=UNLIMITED", "Nice=0"]


def test_a_script_quotes_what_a_shell_would_read() -> None:
    assert quoted("it's $HOME") == "'it'\\''s $HOME'"
    text = batch_script([["echo", "a b"], ["false"]], [None, "/l o g"], "/ends", "ab", retry=1)
    assert "0) set -- echo 'a b' ;;" in text
    assert "1) exec >>'/l o g' 2>&1; set -- false ;;" in text
    assert "gpulease_most=2" in text


def test_a_second_run_of_a_job_ends_as_the_first_did_and_runs_nothing(tmp_path: Path) -> None:
    """A controller that was killed may start again what it had started."""
    environ = {"SLURM_JOB_ID": "12", "PATH": os.environ["PATH"]}
    count = ["sh", "-c", f"echo x >>{tmp_path}/runs; exit 3"]

    def run(retry: int = 0, token: str = "ab", **more: str) -> int:
        text = batch_script([count], [None], str(tmp_path), token, retry)
        return subprocess.run(["sh", "-c", text], env={**environ, **more}, stderr=subprocess.DEVNULL).returncode

    assert [run(), run()] == [3, 3]
    assert (tmp_path / "runs").read_text() == "x\n"
    assert run(SLURM_RESTART_COUNT="1") == 3  # Slurm was told to run it again
    assert (tmp_path / "runs").read_text() == "x\nx\n"
    (tmp_path / "12.ab").unlink()  # it was ended before it could note how
    assert run(SLURM_RESTART_COUNT="1") == 75
    assert (tmp_path / "runs").read_text() == "x\nx\n"
    assert run(retry=1, SLURM_RESTART_COUNT="1") == 3
    assert (tmp_path / "runs").read_text() == "x\n" * 4
    assert run(token="cd") == 3  # another job, to which Slurm gave the same id
    assert (tmp_path / "runs").read_text() == "x\n" * 5


def test_batches_are_arrays_of_a_thousand() -> None:
    assert parts([["true"]] * 2500) == [(0, 1000), (1000, 2000), (2000, 2500)]
    assert parts([["x" * 2_000_000]] * 2) == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", NotEnoughDevices),
        ("salloc: error: Unable to allocate resources: Requested nodes are busy", NotGranted),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", SlurmUnavailable),
        ("Access/permission denied for job 36", NotPermitted),
        ("sbatch: error: Something of its own", SlurmRefused),
        ("", SlurmRefused),
    ],
)
def test_refusals_are_told_in_two_sentences(said: str, kind: type[Exception]) -> None:
    error = refusal("sbatch", said)
    assert type(error) is kind
    assert error.what.endswith(".")
    assert error.next_step.endswith(".")


def test_an_option_that_slurm_does_not_know_is_named() -> None:
    said = "sbatch: unrecognized option '--badopt'\nTry \"sbatch --help\" for more information\n"
    assert refusal("sbatch", said).what == "Slurm refused it: sbatch: unrecognized option '--badopt'."


def test_usage_of_hosts_is_added_up_by_name() -> None:
    row = {"name": "ada", "held": 3600.0, "known": 1800.0, "busy": 900.0, "idle": 900.0, "outside": 0.0}
    row |= {"idle_share": 0.5, "granted": 1, "mean_wait": 10.0, "jobs": {"complete": 2}}
    other = {**row, "held": 1.0, "granted": 3, "mean_wait": 2.0, "jobs": {"failed": 1}}
    rows, total = of_hosts({"a": {"rows": [row], "total": row}, "b": {"rows": [other], "total": other}}, "user")
    assert rows == [{**total, "name": "ada"}]
    assert (total["held"], total["idle_share"], total["granted"], total["mean_wait"]) == (3601.0, 0.5, 4, 4.0)
    assert total["jobs"] == {"complete": 2, "failed": 1}
    assert [one["name"] for one in of_hosts({"a": {"rows": [row], "total": row}}, "gpu")[0]] == ["a:ada"]


def test_of_two_with_one_priority_the_older_comes_first() -> None:
    raws = [{"job_id": id, "priority": 7, "job_state": "PENDING"} for id in (3, 4)]
    seen: Any = SimpleNamespace(raw=[(str(raw["job_id"]), raw) for raw in raws])
    assert [_place(seen, raw) for raw in raws] == [1, 2]


def test_a_command_that_hangs_is_ended_at_its_deadline() -> None:
    with pytest.raises(SlurmUnavailable, match="gave no answer in"):
        run_command(["sleep", "600"], deadline=0.2)
    children = Path("/proc/thread-self/children").read_text().split()
    assert all(b"sleep" not in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children)
    ran = run_command(["sh", "-c", "cat; echo no >&2; exit 4"], b"given")
    assert (ran.code, ran.output, ran.complaint) == (4, "given", "no\n")


def test_ids_of_arrays_are_chosen_and_shown_as_slurm_writes_them() -> None:
    assert selection(["12_3", "12_5-7", "4"])["tasks"] == [(12, 3, 3), (12, 5, 7)]
    assert selection(["12_[5-7]"]) == {"tasks": [(12, 5, 7)]}
    assert to_come_after("12_3,5", "--after") == [5, "12_3"]
    assert ranges(["12_0", "12_1", "12_3", "13"]) == "13,12_0-1,12_3"
    assert ranges([3, 4, 5, 9]) == "3-5,9"
    assert named(["12_0", "12_1", "12_3", "15"]) == ["12_[0-1,3]", "15"]
    rows = [job_row(OLD, id, {}, 0.0) for id in ("6_1", "6_2", "7")]
    assert [row["id"] for row in chosen(rows, selection(["6"]), 1000, False)] == ["6_1", "6_2"]
    assert [row["id"] for row in chosen(rows, selection(["6_2"]), 1000, False)] == ["6_2"]
    assert chosen(rows, selection([], state="waiting"), 1000, False) == []
    with pytest.raises(NotFound):
        chosen(rows, selection([], label="other"), 1000, False)
    with pytest.raises(NotPermitted):
        chosen(rows, selection(["7"]), 1001, False)


def test_usage_is_what_was_held_within_the_time_that_is_asked_for() -> None:
    running = job_row({**OLD, "job_state": "RUNNING", "start_time": 1000}, "6_3", {}, 0.0)
    ended = job_row({**OLD, "start_time": 500, "end_time": 1500, "gres_detail": []}, "6_4", {}, 0.0)
    reply = usage_piece([running, ended], 1200.0, None, 60.0, 2000.0)
    assert [(row["device"], row["held"]) for row in reply["rows"]] == [
        ("node1:0", 800.0),
        ("node1:2", 800.0),
        ("-", 300.0),
        ("-", 300.0),
    ]
    assert reply["counts"] == []
    (count,) = usage_piece([ended], 0.0, None, 60.0, 2000.0)["counts"]
    assert (count["jobs"], count["user"], count["label"]) == ({"failed": 1}, "ada", "sweep")


def test_accounting_is_read() -> None:
    text = "12_3|CANCELLED by 1000|0:15|2026-11-18T00:31:10|2026-11-18T00:35:10|node1\n13|FAILED|3:0|Unknown|Unknown|\n"
    found = read_accounting(text)
    assert (found["12_3"]["job_state"], fields.ended_with(found["12_3"]["exit_code"])) == ("CANCELLED", (None, 15))
    assert found["12_3"]["end_time"] - found["12_3"]["start_time"] == 240
    assert fields.ended_with(found["13"]["exit_code"]) == (3, None)
    whole = "14|COMPLETED|0:0|2026-11-18T00:31:10|2026-11-18T00:35:10|node1|ben|cpu=1,gres/gpu=2|2026-11-18T00:30:00"
    row = job_row({**read_accounting(whole)["14"], "job_id": 14}, "14", {}, 0.0)
    assert (row["state"], row["user"], row["request"]["gpus"]) == ("complete", "ben", 2)
    assert (row["started"] or 0) - row["added"] == 70


def test_a_log_is_found_by_slurms_pattern() -> None:
    assert log_of({**OLD, "standard_output": "out-%x-%j%%"}, "6_3") == "/home/ada/out-train-13%"
    assert log_of({**OLD, "standard_output": ""}, "6_3") == "/home/ada/slurm-6_3.out"
