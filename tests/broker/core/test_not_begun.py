"""A job whose run never began has the place in the line that it had before."""

from __future__ import annotations

import pytest
from support.scripted import ScriptedWorld

from gpulease.broker.core.runs import SHORTEST_DELAY

JOB = {"request": {"gpus": 1}, "commands": [["true"]]}


def started_in_a_paused_queue(options: dict[str, int] | None = None) -> ScriptedWorld:
    world = ScriptedWorld()
    root = world.connect(uid=0)
    world.say(root, "pause", queue=True)
    world.say(root, "add", **JOB, options={"cwd": "/", "environment": {}, **(options or {})})
    world.say(root, "start", select={"ids": [[1, 1]]})
    until_launched(world)
    return world


def until_launched(world: ScriptedWorld) -> None:
    for _ in range(10):
        world.turn()
        while world.samples:
            world.answer_sample()
        while world.checks:
            world.answer_check()
        if world.launches:
            return
    raise AssertionError("it was not started")


@pytest.mark.parametrize("trouble", ["the broker was killed", "something was lacking"])
def test_what_was_started_past_the_policy_is_started_so_again(trouble: str) -> None:
    world = started_in_a_paused_queue()
    if trouble == "something was lacking":
        world.launch(fails=True, temporary=True)
    else:
        world.restart()
        world.find()
    world.turn()
    assert world.core.state.requests.line.forced
    world.jump(2 * SHORTEST_DELAY)
    until_launched(world)


def test_a_run_that_failed_comes_back_as_any_other() -> None:
    world = started_in_a_paused_queue({"retry": 1})
    world.launch()
    world.turn()
    world.end_shell((1, 1), 1)
    world.turn()
    world.read_end()
    world.turn()
    assert "J1" in world.core.state.requests.line
    assert not world.core.state.requests.line.forced


def test_what_was_paused_is_held() -> None:
    world = started_in_a_paused_queue()
    world.say(world.connect(uid=0), "pause", select={"ids": [[1, 1]]})
    world.turn()
    world.restart()
    world.find()
    world.turn()
    job = world.core.state.jobs.get(1)
    assert job is not None
    assert job.state == "held"


def test_a_job_that_is_killed_before_its_launch_is_sent_never_begins() -> None:
    world = started_in_a_paused_queue()
    world.checking = True
    world.say(world.connect(uid=0), "kill", select={"ids": [[1, 1]]})
    world.turn()
    assert not world.launches
    world.turn()
    job = world.core.state.jobs.get(1)
    assert job is not None
    assert (job.state, job.why) == ("killed", "killed by root")
    assert not world.core.state.jobs.delays, "its user's other jobs start as before"
