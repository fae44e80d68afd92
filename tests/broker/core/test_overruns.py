"""The broker keeps a record of leases that outlasted what they declared."""

from __future__ import annotations

from support.scripted import ScriptedWorld


def lease_for(world: ScriptedWorld, declared: float, lasts: float) -> None:
    client = world.connect()
    world.say(client, "acquire", kind="run", request={"duration": declared})
    world.turn()
    while not world.core.state.requests.leases:
        if world.samples:
            world.answer_sample()
        if world.checks:
            world.answer_check()
        world.turn()
    world.now += lasts
    world.die((client.peer.pid, 1))
    world.turn()
    world.leave(client)
    world.turn()


def test_it_is_on_disk_and_made_good_by_leases_that_kept_to_it() -> None:
    world = ScriptedWorld()
    lease_for(world, 1.0, 45.0)
    assert round(world.core.state.learned.records["user1000"].gpu_seconds) == 34
    world.jump(20)
    world.turn()
    assert world.reloaded().learned.records == world.core.state.learned.records
    lease_for(world, 60.0, 50.0)
    assert not world.core.state.learned.records
