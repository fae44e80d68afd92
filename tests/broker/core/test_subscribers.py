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


def broken(turn: Turn, seen_by: str | None) -> dict[str, dict[str, object]]:
    raise KeyError("a mistake of ours")


@pytest.mark.parametrize("number", [2, MANY])
def test_a_mistake_over_a_subscriber_costs_that_subscriber_only(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """With many subscribers the same turn was made again without end, and with few none was concluded any more."""
    subscribe(world, number, "jobs")
    (hurt,) = subscribe(world, 1, "leases")
    monkeypatch.setitem(subscriptions.TABLES, "leases", broken)
    add(world, 1)
    world.say(world.connect(), "acquire", request={}, kind="run", wait=0.0)
    answers: list[object] = []
    for _ in range(TURNS):
        world.turn()
        answers += [one.message for one in world.sent if one.peer is hurt.peer and "error" in one.message]
        while world.checks:
            world.answer_check()
        if world.core.state.subscribers.alarm_at is None and not world.ready:
            break
        world.jump(0.06)
    else:
        raise AssertionError("somebody is told without end")
    assert len(world.core.state.requests.leases) == 1
    assert len(world.core.state.subscribers) == number
    assert hurt.peer not in world.core.state.subscribers
    assert len(answers) == 1
    assert "a mistake of ours" in "".join(world.logs)


def test_a_mistake_over_all_of_them_ends_the_subscriptions_and_nothing_else(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscribe(world, 3, "jobs")

    def raises(*arguments: object) -> None:
        raise KeyError("a mistake of ours")

    monkeypatch.setattr(subscriptions, "_visit_some", raises)
    add(world, 1)
    world.turn()
    assert world.core.state.jobs.counts["held"] == 1
    assert not world.core.state.subscribers
    assert world.core.state.subscribers.alarm_at is None
