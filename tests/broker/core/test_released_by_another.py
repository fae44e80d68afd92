"""Root takes a lease from a process that goes on: its GPU drains until that process is gone, and its user is told."""

from __future__ import annotations

from support.scripted import Client, ScriptedWorld


def reconcile(world: ScriptedWorld) -> None:
    for _ in range(6):
        world.turn()
        while world.samples:
            world.answer_sample()
        while world.checks:
            world.answer_check()


def holding() -> tuple[ScriptedWorld, Client, str]:
    world = ScriptedWorld()
    client = world.connect()
    world.say(client, "notify", file="/home/ada/address", events=["all"])
    world.say(client, "acquire", request={"gpus": 3}, kind="run")
    reconcile(world)
    (id,) = world.core.state.requests.leases
    return world, client, id


def states(world: ScriptedWorld) -> set[str]:
    asking = world.connect(0)
    world.say(asking, "status")
    settle_one: list[dict[str, object]] = []
    for _ in range(3):
        world.turn()
        settle_one += [one.message["ok"] for one in world.sent if one.peer is asking.peer]
        while world.samples:
            world.answer_sample()
    return {device["state"] for device in settle_one[0]["devices"]}  # type: ignore[attr-defined]


def test_its_devices_drain_until_its_process_is_gone() -> None:
    """Before, they were free at once, and the next one shared them with it."""
    world, client, id = holding()
    world.say(world.connect(0), "release", what=[id])
    reconcile(world)
    assert not world.core.state.requests.leases
    assert states(world) == {"draining"}
    world.say(world.connect(), "acquire", request={"gpus": 1}, kind="run", wait=None)
    reconcile(world)
    assert not world.core.state.requests.leases
    world.die((client.peer.pid, 1))
    reconcile(world)
    assert len(world.core.state.requests.leases) == 1


def test_its_user_is_told() -> None:
    world, _, id = holding()
    world.say(world.connect(0), "release", what=[id])
    reconcile(world)
    (notice,) = [one.notice for one in world.notices]
    assert (notice["event"], notice["lease"], notice["why"]) == ("lease-ending", id, "released by root")


def test_what_its_own_user_releases_is_free_at_once() -> None:
    world, client, id = holding()
    world.say(client, "release", what=[id])
    reconcile(world)
    assert states(world) == {"free"}
    assert not world.notices
