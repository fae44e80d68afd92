"""What the core makes of other tools that hand out the same GPUs: what they hold is not granted, and says so."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core.events import ConfigRead, LockUsed, NeighboursChanged
from gpulease.model.store import Document


def asking(world: ScriptedWorld, **request: Any) -> Client:
    client = world.connect()
    world.say(client, "acquire", request=request or {"gpus": 1}, kind="run", wait=None)
    reconcile(world)
    return client


def reconcile(world: ScriptedWorld) -> None:
    """Answer whatever the core wants to know, until it wants nothing more."""
    world.turn()
    while world.samples or world.checks or world.ready:
        if world.samples:
            world.answer_sample()
        elif world.checks:
            world.answer_check()
        world.turn()


def told(world: ScriptedWorld, verb: str, **fields: Any) -> Any:
    client = world.connect()
    world.say(client, verb, **fields)
    world.turn()
    while not any(one.peer is client.peer for one in world.sent):
        world.answer_sample()
        world.turn()
    return next(one.message for one in world.sent if one.peer is client.peer)["ok"]


def device(world: ScriptedWorld, index: int) -> Document:
    row: Document = told(world, "status")["devices"][index]
    return row


def leased(world: ScriptedWorld) -> list[str]:
    return sorted(uuid for lease in world.core.state.requests.leases.values() for uuid in lease.devices)


def test_what_a_neighbour_holds_is_not_granted_and_says_who_has_it() -> None:
    world = ScriptedWorld()
    asking(world, gpus=2)
    world.neighbour_takes("GPU-2", told=True)
    asking(world, gpus=1)
    assert leased(world) == ["GPU-0", "GPU-1"]
    row = device(world, 2)
    assert (row["state"], row["note"]) == ("outside", "held by gpuget")
    waiting = next(iter(world.core.state.requests.pending))
    verdicts = {one["uuid"]: one for one in told(world, "explain", id=waiting)["devices"]}
    assert verdicts["GPU-2"]["why"] == "Held by gpuget."
    world.neighbour_gives("GPU-2")
    reconcile(world)
    assert leased(world) == ["GPU-0", "GPU-1", "GPU-2"]


def lists_made_anew(world: ScriptedWorld, uuid: str, trouble: str | None = None) -> None:
    """A neighbour holds what is leased: its lists were made anew, or it cannot be asked."""
    shown = {"gpuget": {"trouble": trouble}}
    world.ready.append(NeighboursChanged({uuid: "gpuget, process 7 of anna"}, shown=shown))
    world.turn()


def test_a_leased_device_that_a_neighbour_gave_away_too_is_shown_and_recorded_once() -> None:
    world = ScriptedWorld()
    asking(world)
    (uuid,) = leased(world)
    for _ in range(2):
        lists_made_anew(world, uuid)
        world.jump(2)
        reconcile(world)
    row = next(one for one in told(world, "status")["devices"] if one["uuid"] == uuid)
    assert (row["state"], row["note"]) == ("leased", "held by gpuget, process 7 of anna too")
    recorded = [one["why"] for one in told(world, "events")["events"] if one["what"] == "outside"]
    assert recorded == ["it is leased, and held by gpuget too"]


def test_a_lease_is_the_first_reason_while_a_neighbour_cannot_be_asked() -> None:
    world = ScriptedWorld()
    asking(world, gpus=3)
    for uuid in ("GPU-0", "GPU-1", "GPU-2"):
        lists_made_anew(world, uuid, trouble="gpuget's Redis is away.")
        assert (device(world, 0)["state"], device(world, 0)["note"]) == ("leased", None)
    asking(world, gpus=1)
    waiting = next(iter(world.core.state.requests.pending))
    explained = told(world, "explain", id=waiting)
    assert {one["code"] for one in explained["devices"]} == {"leased"}
    assert explained["code"] == "busy"
    assert not [one for one in told(world, "events")["events"] if one["what"] == "outside"]


def test_a_neighbour_that_was_quicker_keeps_its_device_and_another_is_granted() -> None:
    """It takes the device after the plan and before the claim."""
    world = ScriptedWorld()
    reconcile(world)
    client = world.connect()
    world.say(client, "acquire", request={"gpus": 1}, kind="run", wait=None)
    world.turn()
    while not world.checks:
        world.answer_sample()
        world.turn()
    wanted = world.checks[0].devices[0]
    world.neighbour[wanted] = "gpuget"
    reconcile(world)
    assert len(leased(world)) == 1
    assert wanted not in leased(world)


def test_a_placeholder_is_neither_outside_use_nor_the_owners_nor_draining() -> None:
    world = ScriptedWorld()
    asking(world)
    uuid = leased(world)[0]
    world.place(uuid)
    reconcile(world)
    world.jump(2)
    reconcile(world)
    row = next(one for one in told(world, "status")["devices"] if one["uuid"] == uuid)
    assert (row["state"], row["outside"]) == ("leased", [])
    assert [(one["command"], one["lease"]) for one in row["processes"]] == [("placeholder of gpulease", None)]
    assert world.kept.unseen == {uuid}
    pid = world.placeholders[uuid]
    (lease,) = world.core.state.requests.leases
    world.say(world.connect(), "release", what=[lease])
    world.turn()
    world.placeholders[uuid] = pid  # a sample may be older than its end
    asking(world, gpus=3)
    assert leased(world) == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_device_with_a_process_of_anybody_needs_no_placeholder() -> None:
    world = ScriptedWorld()
    asking(world)
    uuid = leased(world)[0]
    assert world.kept.unseen == {uuid}
    world.outside[uuid] = 77
    world.jump(2)
    reconcile(world)
    assert world.kept.unseen == set()


def test_the_next_broker_tells_the_neighbours_what_is_held() -> None:
    world = ScriptedWorld()
    owner = asking(world).peer.pid
    uuid = leased(world)[0]
    world.kept = world.kept._replace(held={})
    world.restart()
    assert {device: held.pid for device, held in world.kept.held.items()} == {uuid: owner}


def use_lock(world: ScriptedWorld, took: bool) -> None:
    """Somebody holds safe-gpu's lock, and then takes a GPU or does not."""
    world.ready.append(LockUsed(77, "process 77"))
    world.turn()
    if took:
        world.outside["GPU-0"] = 77
    told(world, "status")
    reconcile(world)
    world.jump(0)
    world.turn()


@pytest.mark.parametrize(("took", "seconds"), [(True, 86400), (False, 300)])
def test_a_neighbour_is_remembered_for_a_day_and_one_that_took_nothing_for_minutes(took: bool, seconds: int) -> None:
    """Any user can hold safe-gpu's lock, and that alone made each grant wait for a CUDA context for a day."""
    world = ScriptedWorld()
    use_lock(world, took)
    world.outside.clear()
    world.jump(seconds - 10)
    world.restart()
    assert list(world.core.state.devices.neighbours_about) == ["safe-gpu"]
    world.jump(20)
    reconcile(world)
    assert list(world.core.state.devices.neighbours_about) == []
    world.restart()
    assert list(world.core.state.devices.neighbours_about) == []


def test_a_lock_that_is_held_shortens_nothing() -> None:
    world = ScriptedWorld()
    use_lock(world, took=True)
    world.outside.clear()
    use_lock(world, took=False)
    world.jump(80_000)
    reconcile(world)
    assert list(world.core.state.devices.neighbours_about) == ["safe-gpu"]


def beside_gpuget() -> ScriptedWorld:
    world = ScriptedWorld()
    world.ready.append(ConfigRead({"neighbours.gpuget": "redis://localhost"}))
    reconcile(world)
    return world


def test_a_device_goes_back_to_gpuget_once_nobody_is_seen_there() -> None:
    world = beside_gpuget()
    client = asking(world)
    (uuid,) = leased(world)
    assert not world.kept.leaving
    world.outside[uuid] = 77  # which the lease's owner started
    world.jump(2)
    reconcile(world)
    (lease,) = world.core.state.requests.leases
    world.say(client, "release", what=[lease])
    reconcile(world)
    assert not world.kept.held
    assert world.kept.leaving == {uuid}
    for _ in range(3):
        world.jump(2)
        reconcile(world)
    assert world.kept.leaving == {uuid}
    del world.outside[uuid]
    world.jump(2)
    reconcile(world)
    assert world.kept.leaving == set()
    world.outside[uuid] = 78  # whom gpuget gave it to
    world.jump(2)
    reconcile(world)
    assert world.kept.leaving == set()


def test_a_device_of_an_ended_lease_is_looked_at_at_once_and_may_be_leased_again() -> None:
    world = beside_gpuget()
    asking(world, devices=["0"])
    (lease,) = world.core.state.requests.leases
    world.say(world.connect(), "release", what=[lease])
    world.turn()
    assert world.samples
    assert world.kept.leaving == {"GPU-0"}
    asking(world, devices=["0"])
    assert set(world.kept.held) == {"GPU-0"}
    assert not world.kept.leaving


def test_a_device_goes_back_to_gpuget_before_the_next_in_our_line_claims_it() -> None:
    """Those who stand in gpuget's line came first."""
    world = beside_gpuget()
    asking(world, devices=["0"])
    (lease,) = world.core.state.requests.leases
    asking(world, devices=["0"])
    world.jump(0.1)
    world.say(world.connect(), "release", what=[lease])
    world.turn()
    assert (world.samples, world.checks) == (1, [])
    world.answer_sample()
    world.turn()
    assert world.kept.leaving == set()
    assert [check.devices for check in world.checks] == [("GPU-0",)]
