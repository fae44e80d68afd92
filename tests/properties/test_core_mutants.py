"""The bugs that were found in the core once, put back one at a time: the test of interleavings finds each of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.core_machine import CoreMachine

from gpulease.broker import granting, job_life, lease_life, neighbouring
from gpulease.broker.core_state import State
from gpulease.broker.events import Checked, Occupancy
from gpulease.broker.instructions import Keep
from gpulease.broker.state_values import Idle
from gpulease.broker.turn import Turn
from gpulease.model import Waiting

Patch = Callable[[pytest.MonkeyPatch], None]


def _keep_revision(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A change that does not say that plans are made of what it changes."""
    original = getattr(State, name)

    def silent(self: State, *arguments: object) -> object:
        before = self.changes.revision
        result = original(self, *arguments)
        self.changes.revision = before
        return result

    monkeypatch.setattr(State, name, silent)


def job_enters_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`add` in the window idled beside a free GPU."""
    _keep_revision(monkeypatch, "enter_line")


def job_leaves_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill` and `rm` in the window ended in an impossible transition."""
    _keep_revision(monkeypatch, "leave_line")


def edited_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited job started as it was before."""
    job_enters_unnoticed(monkeypatch)
    job_leaves_unnoticed(monkeypatch)


def excluded_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An excluded device was granted."""
    _keep_revision(monkeypatch, "exclude")


def settings_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs started while the queue was acknowledged as paused."""
    _keep_revision(monkeypatch, "use_settings")


def lease_ends_during_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device was taken for looked at whose lease ended after the look had begun."""

    def checked(turn: Turn, event: Checked) -> None:
        for uuid, seen in event.seen.items():
            turn.state.verified.put(uuid, None)
            turn.state.see_device(uuid, seen)
        turn.state.set("check", Idle())

    monkeypatch.setattr("gpulease.broker.core.HANDLERS", {**_handlers(), Checked: checked})


def _handlers() -> dict[type, Callable[..., None]]:
    from gpulease.broker.core import HANDLERS

    return HANDLERS


def commit_fails_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that failed left the change in memory."""
    monkeypatch.setattr(State, "rollback", lambda self: self.store.rollback())


def line_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What entered the line in a turn that was undone stayed there."""

    def enter_line(self: State, waiting: Waiting) -> None:
        if waiting.id not in self.line:  # as it is, when its turn is tried again
            self.line.add(waiting)
        self.changes.revision += 1

    monkeypatch.setattr(State, "enter_line", enter_line)


def lock_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """safe-gpu's lock stayed taken after a check that nobody wanted any more."""
    monkeypatch.setattr(granting, "unlock", lambda turn: None)


def lease_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's lease outlived the job."""
    monkeypatch.setitem(job_life.EFFECTS, "end-lease", lambda turn, before, after: turn.state.forget_run(after.id))


def nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was not granted at once heard nothing."""
    monkeypatch.setattr("gpulease.broker.requesting.answer", lambda turn: None)


def request_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was told that it waits was forgotten by the next broker."""
    monkeypatch.setitem(lease_life.EFFECTS, "write-request", lambda turn, step: turn.state.unwritten.drop(step.id))


def neighbour_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device was granted that a neighbour did not let us have."""
    checked = granting.checked

    def ignoring(turn: Turn, event: Checked) -> None:
        empty = dict.fromkeys(event.held, Occupancy(0, (), None))  # as the sampler would see it
        checked(turn, event._replace(held={}, seen={**event.seen, **empty}))

    monkeypatch.setattr("gpulease.broker.core.HANDLERS", {**_handlers(), Checked: ignoring})


def not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour never heard of the end of a lease."""
    keep = neighbouring._keep

    def keeping(turn: Turn) -> Keep:
        told, before = keep(turn), turn.planned.kept
        return told if before is None else told._replace(held={**before.held, **told.held})

    monkeypatch.setattr(neighbouring, "_keep", keeping)


# By which rules the quick run finds it; the long run has all of them.
LEASES = ("acquire", "use_lease", "answer_check", "answer_sample")
JOBS = ("add", "launch", "end_shell", "finish_errands", "answer_check", "answer_sample")
MUTANTS: dict[Patch, tuple[str, ...]] = {
    job_enters_unnoticed: JOBS,
    job_leaves_unnoticed: ("add", "use_job", "answer_check", "answer_sample"),
    edited_unnoticed: (*JOBS, "change_waiting_job"),
    excluded_unnoticed: (*LEASES, "manage"),
    settings_unnoticed: (*JOBS, "pause_queue"),
    lease_ends_during_check: ("acquire", "leave", "answer_check", "answer_sample"),
    commit_fails_half: (*LEASES, "fail_disk"),
    line_not_undone: (*JOBS, "fail_disk"),
    lock_kept: (*LEASES, "use_request", "leave"),
    lease_not_ended: (*JOBS, "pass_time"),
    nobody_told: LEASES,
    request_not_written: LEASES,
    neighbour_ignored: ("acquire", "leave", "let_neighbour_take", "answer_check", "answer_sample"),
    not_given_back: LEASES,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_bug_is_found_by_what_matters_for_it(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine with a few of its rules, which needs few examples."""
    mutant(monkeypatch)
    kept = {"see_the_devices", *MUTANTS[mutant]}
    others = [rule.function.__name__ for rule in CoreMachine.setup_state().rules]
    focused = type("Focused", (CoreMachine,), {name: None for name in others if name not in kept})
    assert len(CoreMachine.setup_state().rules) > len(focused.setup_state().rules) == len(MUTANTS[mutant])
    assert_found(focused, 1000, 50)


@pytest.mark.long("properties")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_bug_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert_found(CoreMachine, 5000, 100)


def assert_found(machine: type[CoreMachine], examples: int, steps: int) -> None:
    """By a promise that it breaks. A mutant that fails by itself, in its own code above, proves nothing."""
    with pytest.raises(AssertionError) as found:
        run_state_machine_as_test(
            seed(1)(machine),
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                phases=(Phase.generate,),
                report_multiple_bugs=False,
            ),
        )
    frames = re.findall(r'File "(.+?)", line', str(found.value))  # of a failure that the core has logged
    assert not frames or Path(frames[-1]) != Path(__file__), found.value
