"""A kill of many jobs takes many turns; none of them starts meanwhile, and whoever else waits goes on afterwards."""

from __future__ import annotations

import pytest
from support.scripted import ScriptedWorld

OPTIONS = {"cwd": "/", "environment": {}}


def turn(world: ScriptedWorld) -> None:
    """One turn, in a world that does everything at once."""
    while world.samples:
        world.answer_sample()
    while world.checks:
        world.answer_check()
    world.obey()
    world.turn()


@pytest.mark.parametrize("verb", ["kill", "rm"])
@pytest.mark.parametrize("whose", [{"all": True}, {"all": True, "user": "*"}])
def test_none_starts_once_a_kill_was_accepted(verb: str, whose: dict[str, object]) -> None:
    world = ScriptedWorld()
    root = world.connect(uid=0)
    world.say(root, "add", request={"gpus": 1}, commands=[["true"]] * 1000, options=OPTIONS)
    for _ in range(30):
        turn(world)
    world.say(root, verb, select=whose)
    started: list[int] = []
    for _ in range(200):
        turn(world)
        started += [job.id for job in world.launched]
        if not world.core.state.requests.line and not world.core.state.jobs.running:
            break
    assert started == []
    world.say(root, "add", request={"gpus": 1}, commands=[["true"]], options=OPTIONS)
    for _ in range(10):
        turn(world)
    assert [job.id for job in world.core.state.jobs.running.values()] == [1001]


def test_a_kill_that_is_not_gone_on_with_holds_nobody_back() -> None:
    world = ScriptedWorld()
    root = world.connect(uid=0)
    world.say(root, "add", request={"gpus": 1}, commands=[["true"]] * 1000, options=OPTIONS)
    for _ in range(30):
        turn(world)
    world.say(root, "kill", select={"all": True})
    world.turn()
    world.ready = [event for event in world.ready if getattr(event, "progress", None) is None]
    for _ in range(20):
        world.until_next_alarm()
        turn(world)
    assert world.core.state.jobs.running
