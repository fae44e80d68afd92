"""`--at 22:30` means the wall clock: when that is set, the start moves with it, and nothing else does, nor `in 2h`."""

from __future__ import annotations

import pytest
from support.scripted import ScriptedWorld

from gpulease.broker.core.events import ClockStepped


def world_with_a_job(not_before: float, relative: bool = False) -> ScriptedWorld:
    world = ScriptedWorld()
    request = {"gpus": 1, "not_before": world.now + not_before, "relative": relative}
    options = {"cwd": "/", "environment": {}}
    world.say(world.connect(0), "add", request=request, options=options, commands=[["true"]])
    reconcile(world)
    return world


def reconcile(world: ScriptedWorld) -> None:
    while world.ready or world.samples or world.checks:
        if world.samples:
            world.answer_sample()
        if world.checks:
            world.answer_check()
        world.turn()


def step(world: ScriptedWorld, wall_ahead: float) -> None:
    world.wall_ahead = wall_ahead
    world.ready.append(ClockStepped(wall_ahead))
    reconcile(world)


def test_a_step_forward_starts_what_was_to_start_by_then() -> None:
    world = world_with_a_job(3600)
    step(world, 3599)
    assert world.launches == []
    step(world, 3601)
    assert [launch.job.id for launch in world.launches] == [1]


def test_a_step_back_and_forth_leaves_the_start_where_it_was() -> None:
    world = world_with_a_job(3600)
    for ahead in (-86400.0, 7.0, 0.0):
        step(world, ahead)
        if ahead <= 0:
            assert world.launches == []
    (waiting,) = world.core.state.requests.line
    assert waiting.request.not_before == pytest.approx(world.now + 3600)


@pytest.mark.parametrize("ahead", [-86400.0, 86400.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_was_given_as_a_length_of_time_starts_after_it_whatever_the_clock_says(
    ahead: float, restarted: bool
) -> None:
    world = world_with_a_job(3600, relative=True)
    step(world, ahead)
    if restarted:
        world.restart()
        reconcile(world)
    world.jump(3599)
    reconcile(world)
    assert world.launches == []
    world.jump(2)
    reconcile(world)
    assert [launch.job.id for launch in world.launches] == [1]


def test_a_length_of_time_is_counted_from_an_edit() -> None:
    world = world_with_a_job(3600, relative=True)
    step(world, -600)
    changes = {"request": {"not_before": world.now - 600 + 60, "relative": True}}  # as a client's clock says it now
    world.say(world.connect(0), "edit", select={"ids": [[1, 1]]}, changes=changes)
    reconcile(world)
    assert world.core.state.requests.line["J1"].request.not_before == pytest.approx(world.now + 60)
    world.say(world.connect(0), "edit", select={"ids": [[1, 1]]}, changes={"request": {"priority": 3}})
    reconcile(world)
    assert world.core.state.requests.line["J1"].request.not_before == pytest.approx(world.now + 60)


def test_the_next_broker_finds_the_time_that_was_asked_for() -> None:
    world = world_with_a_job(3600)
    step(world, 60)
    assert world.disk.jobs()[0]["request"]["not_before"] == world.now + 3600


def test_a_step_ends_no_lease() -> None:
    world = ScriptedWorld()
    world.say(world.connect(), "acquire", request={"duration": 60.0}, kind="reservation")
    reconcile(world)
    assert len(world.core.state.requests.leases) == 1
    step(world, 86400)
    assert len(world.core.state.requests.leases) == 1
