"""Runs of jobs under every order of events: agents that are slow, silent, lost or lie, brokers that are killed.

The machine of all rules seldom comes so far that a job runs: of each example it leaves out most of its rules. This one
has one rule, which chooses among all that can happen to a run now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from gpulease.broker.core.events import EndRead, Found, Launched, LaunchFailed, TreeSeen
from gpulease.model.jobs import OPEN
from support.core_machine import CoreMachine

ASKED = {  # in which phases an agent is asked for it, and so is believed
    EndRead: ("reading",),
    LaunchFailed: ("launching", "doomed"),
    Launched: ("launching", "doomed"),
    Found: ("finding", "finding-to-end"),
    TreeSeen: ("terminating", "killing"),
}
MAX_JOBS = 3  # that are not over
_rules = [one.function.__name__ for one in CoreMachine.setup_state().rules]
_NoRules: Any = type("_NoRules", (CoreMachine,), dict.fromkeys(_rules))


class RunMachine(_NoRules):  # type: ignore[misc]
    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        world, state = self.world, self.world.core.state
        alive = bool(world.alive())
        few = sum(state.jobs.counts.get(one, 0) for one in OPEN) < MAX_JOBS
        errands = bool(world.ends or world.trees or world.finds)
        can: dict[Callable[..., None], int] = {  # how likely each is now
            self._add: 2 * few,
            self._ask: 2 * bool(state.jobs.number),
            self._launch: 3 * bool(world.launches),
            self._do_errand: 3 * errands,
            self._do_errands: errands,
            self._end_shell: 2 * alive,
            self._leave_child: alive,
            self._lie: bool(state.jobs.runs) and not world.ready,
            self._pass_time: bool(state.jobs.runs),
            self._pass_to_alarm: bool(state.jobs.runs),
            self._lose_agent: bool(state.jobs.runs),
            self._silence_agent: bool(state.jobs.runs),
            self._fail_disk: 1,
            self._restart: bool(state.jobs.runs),
        }
        act = data.draw(st.sampled_from([one for one, times in can.items() for _ in range(times)]))
        act(lambda *choice: data.draw(st.sampled_from(choice)))
        if data.draw(st.sampled_from([True, True, False])):
            self._see_devices()

    def _see_devices(self) -> None:
        """Whatever is to be seen of them; so what waits begins."""
        for _ in range(3):
            while self.world.samples:
                self.world.answer_sample()
            while self.world.checks:
                self.world.answer_check()
            self._turn()

    # ---------------------------------------------------------------- what users do

    def _add(self, choose: Callable[..., Any]) -> None:
        options = {"cwd": "/", "environment": {}, **choose({}, {"retry": 1}, {"time_limit": 20.0})}
        self.world.say(self.world.connect(0), "add", request={"gpus": 1}, commands=[["true"]], options=options)

    def _ask(self, choose: Callable[..., Any]) -> None:
        last = self.world.core.state.jobs.number
        id = choose(*(self.world.core.state.jobs.running or range(max(1, last - MAX_JOBS), last + 1)))
        verb = choose("kill", "pause", "resume", "rm", "retry", "start")
        self.world.say(self.world.connect(0), verb, select={"ids": [[id, id]]})

    # ---------------------------------------------------------------- what agents and runs do

    def _launch(self, choose: Callable[..., Any]) -> None:
        self.world.launch(fails=choose(False, False, False, True), temporary=choose(False, True))

    def _do_errand(self, choose: Callable[..., Any]) -> None:
        world = self.world
        errands = [(world.ends, world.read_end), (world.trees, world.see_tree), (world.finds, world.find)]
        choose(*(do for orders, do in errands if orders))()

    def _do_errands(self, choose: Callable[..., Any]) -> None:
        self.world.obey(launches=False)

    def _end_shell(self, choose: Callable[..., Any]) -> None:
        self.world.end_shell(choose(*self.world.alive()), choose(0, 1, 127, -9))

    def _leave_child(self, choose: Callable[..., Any]) -> None:
        """It starts something that outlives its shell."""
        self.world.children.add(choose(*self.world.alive()))

    def _lie(self, choose: Callable[..., Any]) -> None:
        state, event = self.world.core.state, choose(*ASKED)
        for id, run in state.jobs.runs.items():
            if run.phase not in ASKED[event]:
                self.world.lie(event, id, state.jobs.running[id].run)

    def _lose_agent(self, choose: Callable[..., Any]) -> None:
        self.world.lose_agent()

    def _silence_agent(self, choose: Callable[..., Any]) -> None:
        self.world.silence_agent()

    # ---------------------------------------------------------------- the rest of the world

    def _pass_time(self, choose: Callable[..., Any]) -> None:
        self.world.jump(choose(0.0, 0.1, 1.5, 12.0, 60.0))
        self.world.sweep()

    def _pass_to_alarm(self, choose: Callable[..., Any]) -> None:
        self.world.until_next_alarm()

    def _fail_disk(self, choose: Callable[..., Any]) -> None:
        self.world.disk.fail_commits, self.world.disk.fail_writes = choose(0, 1, 3), choose(0, 1, 3)

    def _restart(self, choose: Callable[..., Any]) -> None:
        before = dict(self.world.core.state.requests.leases)
        self.world.restart()
        self._read_answers(before)

    @invariant()
    def what_a_killed_shell_left_is_ended_first(self) -> None:
        for run in self.world.children:
            job = self.world.core.state.jobs.running.get(run[0])
            noted = run in self.world.codes or self.world.shells[run] in self.world.processes
            assert noted or (job is not None and job.run == run[1]), f"job {run[0]} is over, and a child of it lives"
