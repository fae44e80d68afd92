"""Use without a lease is told of once when it begins, and once when it has ended."""

from __future__ import annotations

from support.kept_events import kept_events
from support.scripted import ScriptedWorld

from gpulease.broker.core.devices import ENDED_AFTER


def sample(world: ScriptedWorld) -> None:
    """The world is looked at, a second later."""
    world.jump(1)
    world.samples += 1
    world.answer_sample()
    world.turn()
    world.jump(0)
    world.turn()


def told(world: ScriptedWorld) -> list[tuple[str, str, int | None, list[str]]]:
    events = [(event.what, event.fields) for event in kept_events(world.disk, 0.0, 100)]
    return [(what, fields["user"], fields["pid"], fields["devices"]) for what, fields in events]


def test_it_is_told_of_once_with_user_and_process() -> None:
    world = ScriptedWorld()
    sample(world)
    world.outside["GPU-1"] = 77
    for _ in range(5):
        sample(world)
    assert told(world) == [("outside", "stranger", 77, ["1"])]


def test_its_end_is_told_of_once_and_who_comes_and_goes_is_one_use() -> None:
    world = ScriptedWorld()
    for pid in range(80, 90):
        world.outside["GPU-1"] = pid
        sample(world)
        del world.outside["GPU-1"]
        sample(world)
    assert len(told(world)) == 1
    world.jump(ENDED_AFTER)
    for _ in range(3):
        sample(world)
    assert told(world)[1:] == [("outside-ended", "stranger", None, ["1"])]


def test_a_full_disk_keeps_nobody_from_the_sample_and_it_is_told_of_later() -> None:
    world = ScriptedWorld()
    world.outside["GPU-1"] = 77
    world.disk.fail_appends = 2  # with the others, and apart
    sample(world)
    assert world.core.state.devices.sample is not None
    assert told(world) == []
    world.jump(10)
    world.turn()
    assert told(world) == [("outside", "stranger", 77, ["1"])]


def test_the_holder_of_a_device_that_somebody_else_uses_is_told() -> None:
    world = ScriptedWorld()
    client = world.connect()
    world.say(client, "notify", file="/home/ada/notices", events=["gpu-used"])
    world.say(client, "acquire", kind="run", request={"devices": ["1"]})
    for _ in range(20):
        world.turn()
        if world.samples:
            world.answer_sample()
        elif world.checks:
            world.answer_check()
    assert [lease.devices for lease in world.core.state.requests.leases.values()] == [("GPU-1",)]
    world.outside["GPU-1"] = 77
    for _ in range(3):
        sample(world)
    assert "leased to user1000" in str(kept_events(world.disk, 0.0, 100)[-1].fields["why"])
    (notice,) = [one.notice for one in world.notices]
    assert (notice["event"], notice["devices"], notice["users"], notice["pid"]) == ("gpu-used", ["1"], ["stranger"], 77)
