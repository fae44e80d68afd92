"""A request that nobody has made leaves the line, the store and the revision as they were, whatever it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.core_machine import REQUESTS
from support.scripted import ScriptedWorld

TURNS = 50


def ask(world: ScriptedWorld, verb: str, **fields: Any) -> Mapping[str, Any]:
    client = world.connect(0)
    world.say(client, verb, **fields)
    for _ in range(TURNS):
        world.turn()
        if world.samples:
            world.answer_sample()
        reply: list[Mapping[str, Any]] = [one.message for one in world.sent if one.peer is client.peer]
        if reply:
            return reply[0]
    raise AssertionError(f"no answer to {verb}")


@given(
    waiting=st.lists(REQUESTS, max_size=4),
    asked=st.lists(st.tuples(REQUESTS, st.sampled_from(["run", "job"]), st.integers(1, 8)), min_size=1, max_size=3),
)
def test_asking_changes_nothing(waiting: list[dict[str, Any]], asked: list[tuple[dict[str, Any], str, int]]) -> None:
    world = ScriptedWorld()
    world.memory = 0.0  # of the host: no job starts
    ask(world, "status")
    for request in waiting:
        ask(world, "add", request=request, commands=[["true"]], options={"cwd": "/", "environment": {}})
    state = world.core.state
    before = (
        [entry.id for entry in state.requests.line.front(99)],
        state.revision,
        dict(state.requests.line.tiers[5].counts if waiting else {}),
    )
    for request, kind, count in asked:
        reply = ask(world, "explain", request=request, kind=kind, count=count)["ok"]
        assert len(reply["starts"]) == (count if reply["possible"] else 0)
        after = dict(state.requests.line.tiers[5].counts if waiting else {})
        assert ([entry.id for entry in state.requests.line.front(99)], state.revision, after) == before
        assert len(state.requests.line) == len(waiting)
