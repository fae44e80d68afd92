"""A job as the store keeps it, and what its output tells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpulease.model import jobs
from gpulease.model.jobs import Job, JobSpec, after_out_of_memory, ran_out_of_memory
from gpulease.model.lifecycle import JOB_ENDS, ImpossibleTransition
from gpulease.model.values import Request

PLAIN = Job(7, 1000, "ada", JobSpec(("python", "train.py"), "/home/ada", "key", Request()), 5.0)
OTHER: dict[str, Any] = dict(  # noqa: C408
    request=Request(2, models=("A100", "V100"), devices=("GPU-1",), priority=1, not_before=9.0, duration=60.0),
    state="failed", name="n", label="l", note="o", log="/log", retry=2, time_limit=4.0, after=(3, 4), after_any=True,
    tries=2, started=6.0, ended=7.0, exit_code=137, signal=9, why="so", out_of_memory=True, devices=("0", "1:0"),
    peak_memory=1 << 33, pid=99, place=1.5, forced=True, run=5, ending="killed by ada", removing=True,
    script="/a.py", script_time=1, script_changed=2,
    log_begin=12, met=(3,), transfer="token", cap=3, at_most=8, notify=("ended",),
)  # fmt: skip
FULL = jobs.changed(PLAIN, **dict.fromkeys(JobSpec._field_defaults, "other") | OTHER)


@pytest.mark.parametrize("job", [PLAIN, FULL], ids=["plain", "full"])
def test_a_job_comes_back_from_the_store_as_it_was(job: Job) -> None:
    for kept in (jobs.stored(job), jobs.document(job)):
        assert jobs.read(json.loads(json.dumps(kept))) == job


def test_every_field_is_kept() -> None:
    assert all(getattr(FULL, name) != getattr(PLAIN, name) for name in Job._field_defaults if name != "history")
    assert all(getattr(FULL.spec, name) != getattr(PLAIN.spec, name) for name in JobSpec._field_defaults)
    assert set(jobs.stored(FULL)) == {*Job._fields, *JobSpec._fields} - {"history", "spec"}


def test_what_is_as_usual_is_not_stored_and_what_another_version_wrote_is_passed_over() -> None:
    kept = jobs.stored(PLAIN)
    assert set(kept) == {"id", "command", "uid", "user", "cwd", "environment", "request", "added", "state", "label"}
    later = {**kept, "invented": 1, "request": {**kept["request"], "invented": 2}}
    assert jobs.read(later) == PLAIN


def test_steps_follow_the_table_and_are_remembered() -> None:
    job, effects = jobs.step(PLAIN, "start", 6.0, tries=1)
    assert (job.state, job.tries, effects) == ("running", 1, ("leave-line", "write", "hold-lease", "launch"))
    assert [step.event for step in jobs.read(json.loads(json.dumps(jobs.stored(job)))).history] == ["start"]
    with pytest.raises(ImpossibleTransition):
        jobs.step(job, "let-go", 7.0)


def test_a_paused_job_may_end_in_every_way_that_a_running_one_may() -> None:
    for event in ("exit-zero", "exit-nonzero", "retry-after-failure", "killed", "lost", "cannot-start"):
        running = jobs.step(PLAIN._replace(state="running"), event, 1.0)[0].state
        assert jobs.step(PLAIN._replace(state="paused"), event, 1.0)[0].state == running


def test_over_is_what_the_lifecycle_calls_an_end() -> None:
    assert {state for state in (*jobs.OPEN, *jobs.ENDS) if PLAIN._replace(state=state).over} == JOB_ENDS


@pytest.mark.parametrize("mark", jobs.OUT_OF_MEMORY)
def test_out_of_memory_is_found_wherever_it_stands(mark: bytes) -> None:
    assert ran_out_of_memory(b"x" * 1000 + mark + b" and more")


@pytest.mark.parametrize("text", [b"", b"MemoryError", b"we are out of coffee", b"memory: 3G", b"\xff\xfe"])
def test_other_failures_are_not_taken_for_it(text: bytes) -> None:
    assert not ran_out_of_memory(text)


def test_a_share_that_ran_out_asks_for_a_whole_device_and_a_whole_one_for_the_same() -> None:
    assert after_out_of_memory(Request(memory=4, max_leases=2, priority=3)) == Request(priority=3)
    assert after_out_of_memory(Request(gpus=2)) == Request(gpus=2)
