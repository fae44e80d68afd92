"""Whoever does not wait is refused for what is there now, not for what was there up to a second ago."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import DEVICES, Client, ScriptedWorld

from gpulease.errors import Cancelled, NotGranted


def busy_world() -> ScriptedWorld:
    """Somebody is on every device, and the broker has just seen that."""
    world = ScriptedWorld()
    world.outside = {f"GPU-{index}": 70 + index for index in range(DEVICES)}
    world.samples += 1
    world.answer_sample()
    world.turn()
    world.samples = 0
    world.now += 0.01
    return world


def ask(world: ScriptedWorld, **more: Any) -> Client:
    client = world.connect()
    world.say(client, "acquire", **{"request": {"gpus": 1}, "kind": "run", "wait": 0, **more})
    world.turn()
    return client


def said(world: ScriptedWorld, client: Client) -> list[str]:
    return [next(iter(sent.message)) for sent in world.sent if sent.peer is client.peer]


def test_what_ended_meanwhile_is_granted() -> None:
    world = busy_world()
    del world.outside["GPU-1"]
    client = ask(world)
    assert (said(world, client), world.samples) == ([], 1)
    world.answer_sample()
    world.turn()
    world.answer_check()
    world.turn()
    assert said(world, client) == ["granted"]


def test_what_is_still_there_refuses_after_one_look() -> None:
    world = busy_world()
    client = ask(world)
    world.answer_sample()
    world.turn()
    assert said(world, client) == ["error"]
    assert world.samples == 0


def test_a_look_that_began_before_does_not_count() -> None:
    world = busy_world()
    world.jump(2)
    world.say(world.connect(), "status")
    world.turn()
    world.now += 0.01
    assert world.samples == 1
    client = ask(world)
    world.answer_sample()  # as it was asked for by the other
    world.turn()
    assert (said(world, client), world.samples) == ([], 1)


@pytest.mark.parametrize("more", [{"wait": None}, {"wait": 60}])
def test_whoever_waits_is_told_so_at_once(more: dict[str, Any]) -> None:
    world = busy_world()
    assert said(world, ask(world, **more)) == ["waiting"]


def test_no_look_is_taken_where_leases_are_in_the_way() -> None:
    world = busy_world()
    world.outside.clear()
    world.jump(2)
    holder = ask(world, request={"gpus": DEVICES})
    world.answer_sample()
    world.turn()
    world.answer_check()
    world.turn()
    assert said(world, holder) == ["granted"]
    world.samples = 0
    assert said(world, ask(world)) == ["error"]


def test_a_job_that_comes_after_a_quiet_time_starts_by_what_is_there_then() -> None:
    """Nobody waited, so nobody looked: the last sample shows processes that ended long ago."""
    world = busy_world()
    world.jump(5)
    world.outside.clear()
    options = {"cwd": "/", "environment": {}}
    world.say(world.connect(), "add", request={}, options=options, commands=[["true"]])
    world.turn()
    assert world.samples == 1
    world.answer_sample()
    world.turn()
    world.answer_check()
    world.turn()
    assert [job.id for job in world.launched] == [1]


def test_a_driver_that_fails_is_not_asked_again_at_once() -> None:
    world = busy_world()
    world.jump(5)
    options = {"cwd": "/", "environment": {}}
    world.say(world.connect(), "add", request={}, options=options, commands=[["true"]])
    world.turn()
    world.fail_driver()
    world.turn()
    world.turn()
    assert world.samples == 0


def test_old_scripts_catch_a_runtime_error() -> None:
    assert issubclass(NotGranted, RuntimeError)
    assert issubclass(Cancelled, RuntimeError)
