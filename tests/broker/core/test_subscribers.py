"""Many subscribers, or some that do not read, cost others little; each still hears all that it may hear."""

from __future__ import annotations

import pytest
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core import status, subscriptions
from gpulease.broker.core.turn import Turn

OPTIONS = {"cwd": "/", "environment": {}, "hold": True}
MANY = 5 * subscriptions.FEW
TURNS = 1000


@pytest.fixture
def world() -> ScriptedWorld:
    made = ScriptedWorld()
    made.say(made.connect(), "status")
    made.turn()
    made.answer_sample()
    made.turn()
    return made


def subscribe(world: ScriptedWorld, number: int, *topics: str) -> list[Client]:
    clients = [world.connect() for _ in range(number)]
    for client in clients:
        world.say(client, "subscribe", topics=list(topics))
    calm(world)
    return clients


def calm(world: ScriptedWorld) -> int:
    """Until nobody is to be told anything: how many were told in one turn at the most."""
    most = 0
    for _ in range(TURNS):
        world.turn()
        most = max(most, sum(bool({"snapshot", "changed"} & one.message.keys()) for one in world.sent))
        if world.core.state.subscribers.alarm_at is None and not world.ready:
            return most
        world.jump(0.06)
    raise AssertionError("somebody is told without end")


def add(world: ScriptedWorld, number: int) -> None:
    commands = [["true"]] * number
    world.say(world.connect(), "add", request={}, options=OPTIONS, commands=commands)


def test_many_are_told_a_few_in_each_turn_and_all_of_them_hear_it(world: ScriptedWorld) -> None:
    clients = subscribe(world, MANY, "jobs", "line")
    add(world, 3)
    assert 0 < calm(world) <= subscriptions.AT_ONCE
    assert {client.open for client in clients} == {3}


def test_one_who_asks_is_answered_before_many_are_told(world: ScriptedWorld) -> None:
    subscribe(world, MANY, "jobs")
    other = world.connect(1001)
    add(world, 3)
    world.say(other, "ping")
    world.turn()
    assert other.peer in [one.peer for one in world.sent]
    assert not any("changed" in one.message for one in world.sent)


def test_for_one_who_does_not_read_nothing_is_made(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    (client,) = subscribe(world, 1, "jobs", "leases")
    world.slow = True
    add(world, 1)
    calm(world)
    made: list[str] = []

    def make(turn: Turn, seen_by: str | None) -> dict[str, dict[str, object]]:
        made.append("leases")
        return {}

    monkeypatch.setitem(subscriptions.TABLES, "leases", make)
    for _ in range(3):
        add(world, 2)
        world.say(world.connect(), "acquire", request={"gpus": 1}, kind="acquire", wait=0)
        world.obey()
        calm(world)
    assert not made
    monkeypatch.undo()
    world.slow = False
    world.read()
    calm(world)
    assert client.open == 7


def test_a_long_table_is_not_read_again_for_each_change(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    (client,) = subscribe(world, 1, "line")
    options = {**OPTIONS, "hold": False}
    world.say(world.connect(), "add", request={"gpus": 3}, options=options, commands=[["true"]] * 300)
    calm(world)
    made: list[float] = []

    def read(turn: Turn, seen_by: str | None) -> dict[str, dict[str, object]]:
        made.append(world.now)
        return status.line_rows(turn, seen_by)

    monkeypatch.setitem(subscriptions.TABLES, "line", read)
    began = world.now
    for _ in range(20):
        world.say(world.connect(), "add", request={"gpus": 3}, options=options, commands=[["true"]])
        world.turn()
        world.jump(0.06)
    calm(world)
    assert len(made) <= 2 + (world.now - began) / (300 * subscriptions.ROW)
    assert client.shown["line"].keys() == {entry.id for entry in world.core.state.requests.line}
