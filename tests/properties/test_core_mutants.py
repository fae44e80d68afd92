"""The bugs that were found in the core once, put back one at a time: the test of interleavings finds each of them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from support.core_machine import CoreMachine
from support.run_machine import RunMachine
from support.scripted import MEMORY

from gpulease.broker.core import core, grants, jobs, leases, neighbours
from gpulease.broker.core.events import Checked, LaunchFailed, Occupancy
from gpulease.broker.core.instructions import UpdateNeighbours
from gpulease.broker.core.state import State
from gpulease.broker.core.state.devices import Devices
from gpulease.broker.core.state.requests import Requests
from gpulease.broker.core.state.tables import Part
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Idle
from gpulease.model.lifecycle import PHASES, RUN
from gpulease.model.values import Waiting

Patch = Callable[[pytest.MonkeyPatch], None]


def _keep_revision(monkeypatch: pytest.MonkeyPatch, part: type[Part], name: str) -> None:
    """A change that does not say that plans are made of what it changes."""
    original = getattr(part, name)

    def silent(self: Part, *arguments: object) -> object:
        before = self.changes.revision
        result = original(self, *arguments)
        self.changes.revision = before
        return result

    monkeypatch.setattr(part, name, silent)


def job_enters_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`add` in the window idled beside a free GPU."""
    _keep_revision(monkeypatch, Requests, "enter_line")


def job_leaves_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill` and `rm` in the window ended in an impossible transition."""
    _keep_revision(monkeypatch, Requests, "leave_line")


def edited_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edited job started as it was before."""
    job_enters_unnoticed(monkeypatch)
    job_leaves_unnoticed(monkeypatch)


def excluded_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An excluded device was granted."""
    _keep_revision(monkeypatch, Devices, "exclude")


def settings_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs started while the queue was acknowledged as paused."""
    _keep_revision(monkeypatch, State, "use_settings")


def lease_ends_during_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device was taken for looked at whose lease ended after the look had begun."""

    def checked(turn: Turn, event: Checked) -> None:
        for uuid, seen in event.seen.items():
            turn.state.devices.verified.put(uuid, None)
            turn.state.devices.set_device(uuid, seen)
        turn.state.devices.check = Idle()

    monkeypatch.setattr("gpulease.broker.core.core.HANDLERS", {**_handlers(), Checked: checked})


def _handlers() -> dict[type, Callable[..., None]]:
    from gpulease.broker.core.core import HANDLERS

    return HANDLERS


def commit_fails_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that failed left the change in memory."""
    monkeypatch.setattr(State, "rollback", lambda self: self.store.rollback())


def line_not_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What entered the line in a turn that was undone stayed there."""

    def enter_line(self: Requests, waiting: Waiting) -> None:
        self.line.add(waiting)
        self.changes.revision += 1

    monkeypatch.setattr(Requests, "enter_line", enter_line)


def lock_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """safe-gpu's lock stayed taken after a check that nobody wanted any more."""
    monkeypatch.setattr(grants, "unlock", lambda turn: None)


def lease_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job's lease outlived the job."""
    monkeypatch.setitem(jobs.EFFECTS, "end-lease", lambda turn, before, after: turn.state.jobs.runs.drop(after.id))


def nobody_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was not granted at once heard nothing."""
    monkeypatch.setattr("gpulease.broker.core.requests.answer", lambda turn: None)


def request_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was told that it waits was forgotten by the next broker."""
    monkeypatch.setitem(leases.EFFECTS, "write-request", lambda turn, step: turn.state.requests.unwritten.drop(step.id))


def neighbour_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device was granted that a neighbour did not let us have."""
    checked = grants.checked

    def ignoring(turn: Turn, event: Checked) -> None:
        empty = dict.fromkeys(event.held, Occupancy(0, (), None))  # as the sampler would see it
        checked(turn, event._replace(held={}, seen={**event.seen, **empty}))

    monkeypatch.setattr("gpulease.broker.core.core.HANDLERS", {**_handlers(), Checked: ignoring})


def not_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A neighbour never heard of the end of a lease."""
    keep = neighbours._update

    def keeping(turn: Turn) -> UpdateNeighbours:
        reply, before = keep(turn), turn.planned.kept
        return reply if before is None else reply._replace(held={**before.held, **reply.held})

    monkeypatch.setattr(neighbours, "_update", keeping)


def silence_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose agent was silent held its GPU for ever, also after a kill."""
    monkeypatch.setitem(core.ALARMS, "overdue", lambda turn, id: None)


def end_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose agent died while it read the end held its GPU for ever."""
    monkeypatch.setitem(PHASES, "reading", PHASES["reading"]._replace(deadline=None))
    monkeypatch.setitem(core.ALARMS, "agent", lambda turn, id: None)


def unasked_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that told of what nobody had asked was believed, and a job that lived was over."""
    monkeypatch.setitem(RUN, ("running", "launch-failed"), RUN["launching", "launch-failed"])


def kill_during_launch_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that was killed while it was launched ran on."""
    monkeypatch.setitem(RUN, ("doomed", "begun"), RUN["launching", "begun"])


def child_of_killed_shell_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed shell had started went on, on devices that were given to others."""
    monkeypatch.setitem(RUN, ("running", "shell-killed"), RUN["running", "exited"])


def launch_failure_believed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a new agent was to find and end was over by a word that nobody had asked for."""
    monkeypatch.setitem(RUN, ("finding-to-end", "launch-failed"), RUN["doomed", "launch-failed"])


def claim_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease whose client had claimed it was taken back after ten seconds."""
    monkeypatch.setitem(leases.EFFECTS, "claim", lambda turn, step: None)


MUTANTS: list[Patch] = [
    job_enters_unnoticed,
    job_leaves_unnoticed,
    edited_unnoticed,
    excluded_unnoticed,
    settings_unnoticed,
    lease_ends_during_check,
    commit_fails_half,
    line_not_undone,
    lock_kept,
    lease_not_ended,
    nobody_told,
    request_not_written,
    neighbour_ignored,
    not_given_back,
    silence_lasts,
    end_read_once,
    unasked_believed,
    claim_forgotten,
    launch_failure_believed_later,
    kill_during_launch_lost,
    child_of_killed_shell_left,
]

# -------------------------------------------------------------------- the quick run: few rules, or a story

LEASES = ("acquire", "use_lease", "answer_check", "answer_sample")
JOBS = ("add", "launch", "end_shell", "finish_errands", "answer_check", "answer_sample")
RULES: dict[Patch, tuple[str, ...]] = {
    job_enters_unnoticed: JOBS,
    edited_unnoticed: (*JOBS, "change_waiting_job"),
    excluded_unnoticed: (*LEASES, "manage"),
    settings_unnoticed: (*JOBS, "pause_queue"),
    commit_fails_half: (*LEASES, "fail_disk"),
    line_not_undone: (*JOBS, "fail_disk"),
    lock_kept: (*LEASES, "use_request", "leave"),
    nobody_told: LEASES,
    request_not_written: LEASES,
    not_given_back: LEASES,
    end_read_once: (*JOBS, "read_slowly", "lose_agent"),
    claim_forgotten: LEASES,
}


class Story:
    """What happens to a core, one thing after the other; after each of them all promises are looked at."""

    def __init__(self) -> None:
        self.machine = CoreMachine()
        self.see_the_devices()

    def __getattr__(self, rule: str) -> Callable[..., None]:
        def happen(**fields: Any) -> None:
            getattr(self.machine, rule)(**fields)
            for promise in CoreMachine.setup_state().invariants:
                promise.function(self.machine)

        return happen

    def acquire_now(self, **request: Any) -> None:
        self.acquire(request=request, wait=None, other=False, now=True)

    def add_now(self, count: int, **request: Any) -> None:
        self.add(request=request, count=count, after=[], options={}, now=True)


def killed_while_it_waits(story: Story) -> None:
    story.add_now(2, gpus=2)
    world = story.machine.world
    world.say(world.connect(0), "kill", select={"ids": [[1, 1]]})
    story.pass_time(seconds=0.0)


def owner_dies_during_a_check(story: Story) -> None:
    """Of a GPU that it shares with the one for whom it is looked at."""
    story.acquire_now(devices=["0"], memory=MEMORY // 10)
    story.answer_check(now=True, refused=False)
    (lease,) = story.machine.world.core.state.requests.leases.values()
    assert lease.owner.pid is not None
    story.acquire_now(devices=["0"], memory=MEMORY // 10)
    story.machine.world.die((lease.owner.pid, 1))
    story.pass_time(seconds=0.0)
    story.answer_check(now=True, refused=False)


def job_fails_at_its_start(story: Story) -> None:
    story.add_now(1, gpus=1)
    story.answer_check(now=True, refused=False)
    story.launch(fails=True, temporary=False, now=True)


def neighbour_takes_during_a_check(story: Story) -> None:
    story.acquire_now(devices=["0"])
    story.let_neighbour_take(index=0, told=False, now=True)
    story.answer_check(now=True, refused=False)


def job_runs(story: Story) -> None:
    story.add_now(1, gpus=1)
    story.answer_check(now=True, refused=False)
    story.launch(fails=False, temporary=False, now=True)


def job_is_killed_and_its_agent_is_silent(story: Story) -> None:
    job_runs(story)
    story.machine.teardown()


def agent_tells_what_nobody_asked(story: Story) -> None:
    job_runs(story)
    world = story.machine.world
    ((id, run),) = world.shells
    world.lie(LaunchFailed, id, run)
    story.pass_time(seconds=0.0)


def agent_tells_that_what_it_is_to_find_never_began(story: Story) -> None:
    job_runs(story)
    story.kill_broker()
    world = story.machine.world
    world.say(world.connect(0), "kill", select={"ids": [[1, 1]]})
    world.lie(LaunchFailed, *next(iter(world.shells)))
    story.pass_time(seconds=0.0)


STORIES: dict[Patch, Callable[[Story], None]] = {
    job_leaves_unnoticed: killed_while_it_waits,
    lease_ends_during_check: owner_dies_during_a_check,
    lease_not_ended: job_fails_at_its_start,
    neighbour_ignored: neighbour_takes_during_a_check,
    silence_lasts: job_is_killed_and_its_agent_is_silent,
    unasked_believed: agent_tells_what_nobody_asked,
    launch_failure_believed_later: agent_tells_that_what_it_is_to_find_never_began,
}
AMONG_RUNS = (kill_during_launch_lost, child_of_killed_shell_left)
OF_RUNS = (*AMONG_RUNS, launch_failure_believed_later, silence_lasts, end_read_once, unasked_believed)


@pytest.mark.parametrize("mutant", RULES, ids=lambda mutant: mutant.__name__)
def test_each_bug_is_found_with_the_few_rules_that_matter(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    rules = {rule.function.__name__ for rule in CoreMachine.setup_state().rules}
    assert rules > set(RULES[mutant])
    without = dict.fromkeys(rules - set(RULES[mutant]))
    assert_found(lambda: run(type("OfFewRules", (CoreMachine,), without), 200))


@pytest.mark.parametrize("mutant", STORIES, ids=lambda mutant: mutant.__name__)
def test_each_bug_that_few_examples_show_is_found_by_a_story(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    STORIES[mutant](Story())  # without it all goes well
    mutant(monkeypatch)
    assert_found(lambda: STORIES[mutant](Story()))


@pytest.mark.parametrize("mutant", AMONG_RUNS, ids=lambda mutant: mutant.__name__)
def test_each_bug_of_runs_is_found_among_them(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert_found(lambda: run(RunMachine, 200))


def test_each_bug_is_looked_for_in_the_quick_run() -> None:
    assert sorted([*RULES, *STORIES, *AMONG_RUNS], key=MUTANTS.index) == MUTANTS


# -------------------------------------------------------------------- the long run: all rules


@pytest.mark.long("properties")
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_each_bug_is_found(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    assert_found(lambda: run(RunMachine if mutant in OF_RUNS else CoreMachine, 5000))


def run(machine: type[CoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        seed(1)(machine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=100,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
            report_multiple_bugs=False,
        ),
    )


def assert_found(attempt: Callable[[], None]) -> None:
    """By a promise that it breaks. A mutant that fails by itself, in its own code above, proves nothing."""
    with pytest.raises(AssertionError) as found:
        attempt()
    frames = re.findall(r'File "(.+?)", line', str(found.value))  # of a failure that the core has logged
    if found.value.__cause__ is not None:
        frames.append(traceback.extract_tb(found.value.__cause__.__traceback__)[-1].filename)
    assert not frames or Path(frames[-1]) != Path(__file__), found.value
