"""Every run ends, whatever becomes of the agent that watches it: the pairs of phase and event that went wrong."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.scripted import ScriptedWorld

from gpulease.broker.agent import runner
from gpulease.broker.core import events
from gpulease.broker.core.events import NO_FORK, RunNote
from gpulease.model.jobs import Job

JOB = {"request": {"gpus": 1}, "commands": [["true"]]}
RUN = (1, 1)


class Runs(ScriptedWorld):
    """One job that runs."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.say(self.connect(uid=0), "add", **JOB, options={"cwd": "/", "environment": {}, **options})
        for _ in range(10):
            self.turn()
            self._look()
            if self.launches:
                break

    def begun(self) -> Runs:
        self.launch()
        self.turn()
        return self

    def _look(self) -> None:
        while self.samples:
            self.answer_sample()
        while self.checks:
            self.answer_check()

    @property
    def job(self) -> Job:
        job = self.core.state.jobs.get(1)
        assert job is not None
        return job

    def ask(self, verb: str) -> None:
        self.say(self.connect(uid=0), verb, select={"ids": [[1, 1]]})
        self.turn()

    def end(self, code: int) -> None:
        self.end_shell(RUN, code)
        self.turn()

    def pass_time(self, seconds: float, healthy: bool | None) -> None:
        """The agent does all that it is told, or nothing; None: it takes its time."""
        until = self.now + seconds
        while self.now < until or self.ready:
            if healthy:
                self.obey()
            elif healthy is False:
                self.silence_agent()
            self._look()
            if not self.ready:
                self.until_next_alarm() if self.alarms and self.alarms[0][0] < until else self.jump(until - self.now)
                self.sweep()
            self.turn()

    def assert_over(self, state: str, code: int | None) -> None:
        assert (self.job.state, self.job.exit_code) == (state, code)
        assert not self.core.state.requests.leases


def test_its_agent_dies_while_its_end_is_read() -> None:
    world = Runs().begun()
    world.end(5)
    assert world.ends
    world.lose_agent()
    world.turn()
    world.pass_time(30, healthy=True)
    world.assert_over("failed", 5)


@pytest.mark.parametrize("killed", [False, True])
def test_its_agent_is_silent_while_its_end_is_read(killed: bool) -> None:
    world = Runs().begun()
    world.end(5)
    if killed:
        world.ask("kill")
    world.pass_time(120, healthy=False)
    world.assert_over("killed" if killed else "failed", 5)


@pytest.mark.parametrize("killed", [False, True])
def test_its_shell_was_killed_and_its_agent_is_silent(killed: bool) -> None:
    world = Runs().begun()
    world.end(-9)
    assert world.trees
    if killed:
        world.ask("kill")
    world.pass_time(200, healthy=False)
    world.assert_over("killed" if killed else "failed", 137)


def test_its_agent_does_not_even_launch_it() -> None:
    world = Runs()
    world.silence_agent()
    world.pass_time(70, healthy=False)
    world.pass_time(60, healthy=True)
    assert world.job.state == "running"
    assert world.shells[1, world.job.run] in world.processes


@pytest.mark.parametrize("launched", [False, True])
def test_a_kill_helps_against_an_agent_that_does_nothing(launched: bool) -> None:
    world = Runs()
    if launched:
        world.begun()
    world.silence_agent()
    world.ask("kill")
    world.pass_time(300, healthy=False)
    assert world.job.state == "killed"
    assert not world.core.state.requests.leases


def test_a_code_that_is_known_outlives_the_agent() -> None:
    world = Runs().begun()
    world.end(-11)
    world.codes.clear()  # its shell could note nothing
    world.lose_agent()
    world.turn()
    world.pass_time(30, healthy=True)
    world.assert_over("failed", 139)


@pytest.mark.parametrize("order", [("pause", "kill"), ("kill", "pause")])
@pytest.mark.parametrize("launched", [False, True])
def test_what_was_told_to_end_is_not_stopped(order: tuple[str, str], launched: bool) -> None:
    world = Runs()
    if launched:
        world.begun()
    for verb in order:
        world.ask(verb)
    if launched:
        sent = [number for one in world.trees for number in one.signals]
        world.lose_agent()
        world.turn()
        world.until_next_alarm()
        world.turn()
        while world.finds:
            world.find()
    else:
        sent = []
        world.launch()
    world.turn()
    sent += [number for one in world.trees for number in one.signals]
    assert signal.SIGSTOP not in sent[sent.index(signal.SIGTERM) :]


@pytest.mark.parametrize("dies", ["broker", "agent"])
@pytest.mark.parametrize(
    ("verbs", "sent"),
    [((), []), (("pause",), [signal.SIGSTOP]), (("pause", "resume"), [signal.SIGCONT])],
    ids=["neither", "pause", "resume"],
)
def test_a_pause_or_resume_that_was_acknowledged_is_carried_out(
    verbs: tuple[str, ...], sent: list[int], dies: str
) -> None:
    """Before, the death of broker and agent lost it: a resumed job stayed stopped, and nobody saw that it was."""
    world = Runs().begun()
    for verb in verbs:
        world.ask(verb)
    if dies == "broker":
        world.restart()
    else:
        world.lose_agent()
        world.turn()
    while not world.finds:
        world.until_next_alarm()
        world.turn()
    world.find()
    world.turn()
    assert [number for one in world.trees for number in one.signals] == sent


def test_a_resume_counts_while_a_new_broker_looks_for_the_paused_run() -> None:
    """Before, the pause was sent once more behind it: the job stayed stopped, and was called running."""
    world = Runs().begun()
    world.ask("pause")
    world.restart()
    while not world.finds:
        world.until_next_alarm()
        world.turn()
    world.ask("resume")
    world.find()
    world.turn()
    assert [number for one in world.trees for number in one.signals] == [signal.SIGCONT]


@pytest.mark.parametrize("noted", [True, False])
def test_what_a_command_left_running_is_not_ended_if_it_ended_by_itself(noted: bool) -> None:
    """Before, it was killed where another broker or agent had found the run meanwhile."""
    world = Runs().begun()
    world.restart()
    world.find()
    world.turn()
    world.end(5)
    if not noted:
        world.codes.clear()  # its shell was killed
    world.find()
    world.turn()
    assert [one.signals for one in world.trees] == ([] if noted else [(signal.SIGKILL,)])
    world.pass_time(30, healthy=True)
    world.assert_over("failed" if noted else "lost", 5 if noted else None)


@pytest.mark.parametrize(
    "event",
    [
        events.EndRead(*RUN, RunNote(2, 0), False, None),
        events.LaunchFailed(*RUN, "a lie", True),
        events.LaunchFailed(*RUN, "a lie", False),
        events.Launched(*RUN, 77, 1, 0),
        events.Found(*RUN, RunNote(), None, None, False),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_nobody_asked_for_is_not_believed(event: events.Event) -> None:
    world = Runs().begun()
    before = world.core.state.jobs.running[1]
    world.ready.append(event)
    world.turn()
    assert world.core.state.jobs.running.get(1) == before
    assert world.core.state.jobs.shell(1) == world.shells[RUN]


@pytest.mark.parametrize(("note", "code"), [(None, None), ("7\n", 122), ("7 122\n", 122)])
def test_what_may_never_have_begun_is_not_called_failed(note: str | None, code: int | None, tmp_path: Path) -> None:
    """A shell ends with 122 if it cannot note that it began; so may a command, but then there is a note."""
    if note is not None:
        (tmp_path / "1.1").write_text(note)
    order = {"id": 1, "run": 1, "log": f"{tmp_path}/log", "note": f"{tmp_path}/1.1", "former": f"{tmp_path}/former"}
    reply = runner.read_end({**order, "pid": 7, "code": 122, "log_begin": 0}, {})
    assert reply == events.EndRead(1, 1, RunNote(7, code), False, None)


def test_a_launch_that_could_not_fork_makes_the_next_wait_longer() -> None:
    """Before, each launch that got as far as a shell began with the shortest delay again."""
    world, delays = Runs(), []
    for run in (1, 2, 3):
        world.launch()
        world.turn()
        world.end_shell((1, run), 2)
        world.turn()
        world.ends.clear()
        world.ready.append(events.EndRead(1, run, RunNote(7, None, NO_FORK), False, None))
        world.turn()
        assert (world.job.state, world.job.tries) == ("waiting", 0)
        delays.append(world.core.state.jobs.delays["root"].seconds)
        world.pass_time(delays[-1] + 0.1, healthy=None)
    assert delays == [1.0, 2.0, 4.0]
