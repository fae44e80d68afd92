"""Random verbs, and deaths of the broker between them: the real queue is always where a simple model of it is."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.queue_site import QueueSite
from support.waiting import wait_until

pytestmark = [pytest.mark.longer("queue"), pytest.mark.timeout(3600 if os.environ.get("GPULEASE_LONG") else 600)]
LONG = bool(os.environ.get("GPULEASE_LONG"))
DEVICES = 2
# Runs until it is told its exit code, and counts its runs.
SCRIPT = "j=$GPULEASE_JOB; echo run >>$j.runs; while ! [ -s $j.end ]; do sleep 0.02; done; exit $(cat $j.end)"


class Model:
    """Jobs by id: a state each; the line in order; who runs is whoever stands first while a device is free."""

    def __init__(self) -> None:
        self.states: dict[int, str] = {}
        self.line: list[int] = []
        self.priority: dict[int, int] = {}
        self.arrival: dict[int, int] = {}
        self.place: dict[int, float] = {}  # in the line: by arrival, unless it was moved
        self.forced: list[int] = []
        self.runs: dict[int, int] = {}
        self.paused = False

    def arrive(self, id: int) -> None:
        self.arrival[id] = max(self.arrival.values(), default=0) + 1

    def join(self, id: int) -> None:
        """In the order of arrival, among those of its priority."""
        self.states[id] = "waiting"
        self.place[id] = self.arrival[id]
        self._sort([*self.line, id])

    def leave(self, id: int, state: str) -> None:
        for line in (self.line, self.forced):
            if id in line:
                line.remove(id)
        self.states[id] = state

    def move(self, id: int) -> None:
        others = [other for other in self.line if other != id]
        if others:
            self.priority[id] = self.priority[others[0]]
            self.place[id] = self.place[others[0]] - 0.001
        self._sort(self.line)

    def force(self, id: int) -> None:
        self.leave(id, "waiting")
        self.forced = sorted([*self.forced, id], key=lambda other: self.arrival[other])

    def _sort(self, ids: list[int]) -> None:
        self.line = sorted(ids, key=lambda id: (self.priority[id], self.place[id]))

    def reconcile(self) -> None:
        while (free := self.free()) and (ready := self.forced or ([] if self.paused else self.line)):
            assert free > 0
            id = ready[0]
            self.leave(id, "running")
            self.runs[id] = self.runs.get(id, 0) + 1

    def free(self) -> int:
        return DEVICES - sum(state in ("running", "paused") for state in self.states.values())

    def within(self, *states: str) -> list[int]:
        return [id for id, state in self.states.items() if state in states]


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.site = QueueSite(DEVICES)
        self.model = Model()

    @initialize()
    def begin(self) -> None:
        self.site.ensure_broker()

    def some(self, data: Any, *states: str) -> int:
        return int(data.draw(st.sampled_from(self.model.within(*states))))

    @rule(priority=st.sampled_from([1, 5, 5, 9]), hold=st.booleans())
    def add(self, priority: int, hold: bool) -> None:
        id = self.site.shell(SCRIPT, {"priority": priority}, hold=hold)
        self.model.priority[id] = priority
        self.model.arrive(id)
        if hold:
            self.model.states[id] = "held"
        else:
            self.model.join(id)

    @precondition(lambda self: self.model.within("running"))
    @rule(data=st.data(), code=st.sampled_from([0, 0, 7]))
    def finish(self, data: Any, code: int) -> None:
        id = self.some(data, "running")
        (self.site.folder / f"{id}.end").write_text(str(code))
        self.model.leave(id, "failed" if code else "complete")

    @precondition(lambda self: self.model.within("waiting", "held", "running", "paused"))
    @rule(data=st.data())
    def kill(self, data: Any) -> None:
        id = self.some(data, "waiting", "held", "running", "paused")
        self.site.act("kill", id)
        self.model.leave(id, "killed")

    @precondition(lambda self: self.model.within("running"))
    @rule(data=st.data())
    def pause(self, data: Any) -> None:
        id = self.some(data, "running")
        self.site.act("pause", id)
        self.model.states[id] = "paused"

    @precondition(lambda self: self.model.within("paused", "held"))
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        id = self.some(data, "paused", "held")
        self.site.act("resume", id)
        if self.model.states[id] == "paused":
            self.model.states[id] = "running"
        else:
            self.model.join(id)

    @rule()
    def pause_or_resume_the_queue(self) -> None:
        self.model.paused = not self.model.paused
        self.site.ask("pause" if self.model.paused else "resume", queue=True)

    @precondition(lambda self: self.model.line)
    @rule(data=st.data())
    def move_to_the_front(self, data: Any) -> None:
        id = int(data.draw(st.sampled_from(self.model.line)))
        self.site.ask("move", id=id)
        self.model.move(id)

    @precondition(lambda self: self.model.line or self.model.within("held"))
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        id = int(data.draw(st.sampled_from([*self.model.line, *self.model.within("held")])))
        self.site.act("start", id)
        self.model.force(id)

    @precondition(lambda self: self.model.within("complete", "failed", "killed"))
    @rule(data=st.data())
    def retry(self, data: Any) -> None:
        id = self.some(data, "complete", "failed", "killed")
        (self.site.folder / f"{id}.end").unlink(missing_ok=True)
        self.site.act("retry", id)
        self.model.arrive(id)
        self.model.join(id)

    @precondition(lambda self: self.model.states)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        id = int(data.draw(st.sampled_from(sorted(self.model.states))))
        self.site.act("rm", id)
        self.model.leave(id, "gone")
        del self.model.states[id]

    @rule()
    def kill_the_broker(self) -> None:
        """Once what runs has begun; what has not would go back into the line, which other tests hold."""
        wait_until(lambda: all(job["pid"] for job in self.site.jobs() if job["state"] in ("running", "paused")))
        self.site.restart()

    @invariant()
    def the_queue_is_where_the_model_is(self) -> None:
        self.model.reconcile()
        line = [*self.model.forced, *self.model.line]
        try:
            wait_until(lambda: self.seen() == (self.model.states, line))
        except AssertionError:
            raise AssertionError(f"the queue: {self.seen()}, the model: {(self.model.states, line)}") from None

    def seen(self) -> tuple[dict[int, str], list[int]]:
        jobs = self.site.jobs()
        return {job["id"]: job["state"] for job in jobs}, [job["id"] for job in jobs if job["state"] == "waiting"]

    def teardown(self) -> None:
        try:
            for id, runs in self.model.runs.items():
                path = self.site.folder / f"{id}.runs"
                assert len(path.read_text().splitlines() if path.exists() else []) <= runs
            assert "Traceback" not in self.site.log(), self.site.log()
        finally:
            self.site.close()


QueueMachine.TestCase.settings = settings(
    max_examples=20 if LONG else 3,
    stateful_step_count=40 if LONG else 15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not LONG,
)
TestQueueAgainstItsModel = QueueMachine.TestCase
