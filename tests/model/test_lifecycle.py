"""The table of states is complete, its ends are ends, and the drawn page is the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpulease.broker.core import jobs as core_jobs
from gpulease.broker.core import leases, runs
from gpulease.model import jobs as model_jobs
from gpulease.model import lifecycle
from gpulease.model.lifecycle import (
    IGNORED,
    JOB,
    JOB_ENDS,
    LEASE,
    LEASE_ENDS,
    PHASES,
    RUN,
    RUN_ENDS,
    START,
    ImpossibleTransition,
)
from gpulease.model.values import Request

NEW = model_jobs.Job(12, 1, "ada", model_jobs.JobSpec(("true",), "/", "e", Request()), 0.0, state=START)
BROKER = Path(leases.__file__).parent
ROOT = Path(__file__).parents[2]


def states(table: lifecycle.Table) -> set[str]:
    return {state for state, _ in table} | {state for state, _ in table.values()}


def test_the_page_is_drawn_from_the_table() -> None:
    check = [sys.executable, str(ROOT / "tools" / "lifecycle_page.py"), "--check"]
    assert subprocess.run(check).returncode == 0, "run: python tools/lifecycle_page.py"


def test_a_job_has_the_states_of_the_contract() -> None:
    named = {"waiting", "held", "running", "paused", "complete", "failed", "invalid", "killed", "lost"}
    assert states(JOB) == named | {START}


@pytest.mark.parametrize(("table", "ends"), [(LEASE, LEASE_ENDS), (JOB, JOB_ENDS), (RUN, RUN_ENDS)])
def test_every_state_is_reached_and_leads_to_an_end(table: lifecycle.Table, ends: frozenset[str]) -> None:
    assert _reached(table, START) == states(table)
    for state in states(table) - ends:
        assert _reached(table, state) & ends


def _reached(table: lifecycle.Table, start: str) -> set[str]:
    reached, grown = {start}, True
    while grown:
        more = {to for (state, _), (to, _) in table.items() if state in reached} - reached
        reached |= more
        grown = bool(more)
    return reached


@pytest.mark.parametrize(
    ("table", "functions"), [(LEASE, leases.EFFECTS), (JOB, core_jobs.EFFECTS), (RUN, runs.EFFECTS)]
)
def test_every_effect_is_executed_and_no_other(table: lifecycle.Table, functions: dict[str, object]) -> None:
    assert {effect for _, effects in table.values() for effect in effects} == set(functions)


def test_jobs_that_are_added_together_have_the_effects_of_the_table() -> None:
    assert {one for (state, _), (_, effects) in JOB.items() if state == START for one in effects} == {
        *core_jobs.BATCH_EFFECTS
    }


@pytest.mark.parametrize("table", [LEASE, JOB, RUN])
def test_every_event_of_a_table_happens_in_the_broker(table: lifecycle.Table) -> None:
    source = "".join(file.read_text() for file in BROKER.glob("*.py"))
    assert [event for _, event in table if f'"{event}"' not in source] == []


def test_every_end_of_a_run_gives_back_its_devices() -> None:
    for (state, _), (to, effects) in JOB.items():
        if state in ("running", "paused") and to not in ("running", "paused"):
            assert "end-lease" in effects


def test_every_event_has_a_row_in_every_phase_of_a_run_or_a_reason_why_it_is_ignored() -> None:
    events = {event for state, event in RUN if state != START}
    assert {state for state, _ in RUN} == {*PHASES, START}
    assert {*RUN, *IGNORED} - {key for key in RUN if key[0] == START} == {
        (one, two) for one in PHASES for two in events
    }
    assert not RUN.keys() & IGNORED.keys()
    assert all(IGNORED.values())


def test_every_phase_of_a_run_but_one_has_a_deadline_and_all_serve_a_new_agent() -> None:
    assert [name for name, phase in PHASES.items() if phase.deadline is None] == ["running"]
    assert {state for state, event in RUN if event == "deadline"} == PHASES.keys() - {"running"}
    assert {state for state, event in RUN if event == "new-agent"} == PHASES.keys()
    assert {phase.question for phase in PHASES.values()} - {None} == runs.QUESTIONS.keys()


def test_an_impossible_transition_tells_its_history() -> None:
    job = NEW
    for moment, event in enumerate(("add", "start", "exit-zero")):
        job, _ = model_jobs.step(job, event, float(moment))
    with pytest.raises(ImpossibleTransition, match=r"job 12 in state 'complete' cannot 'pause'") as raised:
        model_jobs.step(job, "pause", 9.0)
    assert "at 1 start: waiting -> running" in str(raised.value)
    assert [step.event for step in raised.value.history] == ["add", "start", "exit-zero"]


def test_the_history_does_not_grow_for_ever() -> None:
    job, _ = model_jobs.step(NEW, "add", 0.0)
    for moment in range(50):
        job, _ = model_jobs.step(job, "edit", float(moment))
    assert len(job.history) == lifecycle.REMEMBERED
