"""A GPU that the driver loses is in the events, and keeps its name and its holder through a restart of the broker."""

from __future__ import annotations

from support.kept_events import kept_events
from support.scripted import ScriptedWorld

from gpulease.broker.core import events as core_events
from gpulease.model.values import Device, Sample


def sample(world: ScriptedWorld, devices: list[Device] | None = None) -> None:
    world.jump(1)
    seen = world.devices() if devices is None else devices
    world.ready.append(core_events.Sampled(Sample(world.now, tuple(seen), True, "550")))
    world.turn()
    world.jump(0)
    world.turn()


def events(world: ScriptedWorld) -> list[tuple[str, list[str]]]:
    return [(event.what, event.fields["devices"]) for event in kept_events(world.disk, 0.0, 100)]


def test_it_is_in_the_events_once_and_so_is_that_it_came_back() -> None:
    world = ScriptedWorld()
    sample(world)
    for _ in range(2):
        for lost in ({"GPU-1": "it fell off the bus"}, {"GPU-1": "it fell off the bus"}, {}, {}):
            world.lost = lost
            sample(world)
    assert events(world) == [("gpu-lost", ["1"]), ("gpu-back", ["1"])] * 2


def test_a_full_disk_keeps_nobody_from_the_sample() -> None:
    world = ScriptedWorld()
    sample(world)
    world.lost = {"GPU-1": "it fell off the bus"}
    world.disk.fail_appends = 1
    sample(world)
    assert world.core.state.devices.by_uuid["GPU-1"].lost


def test_after_a_restart_it_still_has_its_name_and_its_holder() -> None:
    world = ScriptedWorld()
    client = world.connect()
    sample(world)
    world.say(client, "acquire", kind="reservation", request={"devices": ["1"]})
    for _ in range(9):
        world.turn()
        if world.checks:
            world.answer_check()
    assert world.core.state.requests.leases
    world.restart()
    nameless = Device(1, "lost-1", "unknown GPU", lost="it fell off the bus", processes=None)
    whole = world.devices()
    sample(world, [whole[0], nameless, whole[2]])
    found = world.core.state.devices.by_uuid["GPU-1"]
    assert (found.name, found.index, found.lost) == ("A100", 1, "it fell off the bus")
    assert [lease.devices for lease in world.core.state.requests.leases.values()] == [("GPU-1",)]
    sample(world, [whole[0], nameless, whole[2]])
    assert "lost-1" not in world.core.state.devices.by_uuid
