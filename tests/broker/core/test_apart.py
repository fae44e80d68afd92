"""An exception while one request is handled ends that request, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import ScriptedWorld

from gpulease.broker.core import lease_verbs
from gpulease.broker.core.events import Received
from gpulease.broker.core.turn import Turn

JOB = {"request": {"gpus": 1}, "commands": [["true"]]}


def ask_before_the_first_sample(world: ScriptedWorld, **options: str) -> dict[str, str]:
    """What each of three clients is told, of whom the second asks for something that is not right."""
    clients = {name: world.connect() for name in ("first", "wrong", "last")}
    world.say(clients["first"], "acquire", request={"gpus": 1}, kind="run", wait=None)
    world.say(clients["wrong"], "add", **JOB, options={"cwd": "/", "environment": {}, **options})
    world.say(clients["last"], "status")
    world.turn()
    reply: dict[str, str] = {}
    for answer in (world.answer_sample, world.answer_check):
        answer()
        world.turn()
        reply |= {n: next(iter(one.message)) for n, c in clients.items() for one in world.sent if one.peer is c.peer}
    return reply


def test_a_wrong_request_takes_none_of_those_that_wait_for_the_first_sample_with_it() -> None:
    reply = ask_before_the_first_sample(ScriptedWorld(), label="\udcff")
    assert reply == {"first": "granted", "wrong": "error", "last": "ok"}


def test_nor_does_a_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(turn: Turn, event: Received[Any]) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(lease_verbs.VERBS, "add", fails)
    assert ask_before_the_first_sample(ScriptedWorld()) == {"first": "granted", "wrong": "error", "last": "ok"}


def test_nor_is_anybody_answered_twice_when_the_disk_is_full() -> None:
    """Before, those who waited for the first sample were refused, and stayed in line to be answered once more."""
    world = ScriptedWorld()
    clients = [world.connect() for _ in range(3)]
    for client in clients:
        world.say(client, "add", **JOB, options={"cwd": "/", "environment": {}})
    world.turn()
    world.disk.fail_writes = 100
    answers = []
    for _ in range(3):
        world.answer_sample()
        world.turn()
        answers += [one.peer for one in world.sent]
    assert answers == [client.peer for client in clients]
    assert world.core.state.devices.awaiting == ()
