"""A job that comes after thousands costs little each time one of them ends; what would cost too much is refused."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core import dependencies


@pytest.fixture
def world() -> ScriptedWorld:
    """Nothing starts: the host has no memory left."""
    made = ScriptedWorld()
    made.memory = 0.0
    made.say(made.connect(), "status")
    made.turn()
    made.answer_sample()
    made.turn()
    return made


def ask(world: ScriptedWorld, client: Client, verb: str, **fields: Any) -> dict[str, Any]:
    """What it is answered."""
    world.say(client, verb, **fields)
    reply: list[Any] = []
    while world.ready:
        world.turn()
        reply += [one.message for one in world.sent if one.peer is client.peer]
    return dict(reply[-1])


def add(world: ScriptedWorld, client: Client, number: int, **options: Any) -> dict[str, Any]:
    given = {"cwd": "/", "environment": {}, **options}
    return ask(world, client, "add", request={}, options=given, commands=[["true"]] * number)


def test_the_end_of_one_of_many_writes_that_one_only(world: ScriptedWorld) -> None:
    client = world.connect(1000)
    add(world, client, 250)
    (id,) = range(251, 1 + add(world, client, 1, after=[[1, 250]], after_any=True)["ok"]["last"])
    written = world.disk.writes
    ask(world, client, "kill", select={"ids": [[1, 90]]})
    assert world.disk.writes - written == 90
    blocked = world.core.state.requests.line[f"J{id}"].blocked
    assert blocked == ("It comes after 160 jobs: 91, 92, 93, 94, 95 and others.", "after 91 and 159 more")
    ask(world, client, "kill", select={"ids": [[91, 250]]})
    while world.core.state.requests.line[f"J{id}"].blocked is not None:
        world.jump(0)
        world.turn()
    assert not world.core.state.jobs.awaited
    assert not world.core.state.jobs.followed
    assert not any(world.core.state.jobs.dependents.values())


@pytest.mark.parametrize(("number", "most"), [(1, "MAX_AFTER"), (50, "MAX_LINKS")])
def test_more_than_can_be_kept_is_refused_and_said(
    world: ScriptedWorld, number: int, most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependencies, most, 100)
    client = world.connect(1000)
    add(world, client, 101, label="a")
    for options in ({"after": [[1, 101]]}, {"after": "all"}, {"after_label": "a"}):
        error = add(world, client, number, **options)["error"]
        assert error["code"] == "too-much"
        assert "gpulease add -n 0 --after" in error["next_step"]
    assert world.core.state.jobs.counts == {"waiting": 101}
