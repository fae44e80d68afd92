"""What the broker tells of a start as time passes: no bound moves away, who is late counts, own leases stay."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.scripted import Client, ScriptedWorld

DEVICES = 3


def reconcile(world: ScriptedWorld) -> None:
    for _ in range(20):
        world.turn()
        if world.samples:
            world.answer_sample()
        elif world.checks:
            world.answer_check()
        elif not world.ready:
            return


def ask(world: ScriptedWorld, client: Client, verb: str, **fields: Any) -> dict[str, Any]:
    world.say(client, verb, **fields)
    for _ in range(20):
        world.turn()
        if world.samples:
            world.answer_sample()
        reply = [one.message["ok"] for one in world.sent if one.peer is client.peer and "ok" in one.message]
        if reply:
            answer: dict[str, Any] = reply[0]
            return answer
    raise AssertionError(f"no answer to {verb}")


def held(world: ScriptedWorld, client: Client | None = None, **request: Any) -> Client:
    """A client whose request was asked, and granted if it can be."""
    client = client or world.connect()
    world.say(client, "acquire", kind="run", request=request)
    reconcile(world)
    return client


def learn(world: ScriptedWorld, *lengths: float) -> None:
    """Runs of so many seconds that have ended."""
    for length in lengths:
        client = held(world)
        world.now += length
        world.die((client.peer.pid, 1))
        world.leave(client)
        reconcile(world)


def row(world: ScriptedWorld, looker: Client) -> dict[str, Any]:
    (found,) = ask(world, looker, "status")["line"]
    return dict(found)


@given(
    known=st.lists(st.sampled_from((5.0, 30.0, 200.0, 3000.0)), min_size=6, max_size=9),
    declared=st.lists(st.sampled_from((None, 60.0, 7200.0)), min_size=DEVICES, max_size=DEVICES),
    steps=st.lists(st.sampled_from((0.5, 20.0, 300.0, 4000.0)), min_size=3, max_size=12),
)
def test_a_bound_that_was_told_does_not_move_while_nothing_but_time_passes(
    known: list[float], declared: list[float | None], steps: list[float]
) -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *known)
    for duration in declared:
        held(world, duration=duration)
    held(world)
    bound = None
    for step in steps:
        seen = row(world, looker)
        latest = seen["expected_latest"]
        assert latest is None or bound is None or latest <= bound
        if bound is not None and world.now > bound + 10:
            assert latest is None, "a time is told again for what was missed, and nothing has changed"
            assert seen["expected_missed"] == bound
            assert "when it will is unknown" in seen["why"]
        bound = latest or bound
        world.now += step


def test_what_is_told_anew_when_something_has_changed_is_no_less_true() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    first = held(world)
    held(world, gpus=2)
    held(world, gpus=2)
    bound = row(world, looker)["expected_latest"]
    world.now = bound + 60
    assert row(world, looker)["expected_missed"] == bound
    world.die((first.peer.pid, 1))
    reconcile(world)
    again = row(world, looker)
    assert again["expected_missed"] is None
    assert again["expected_latest"] > world.now


def test_a_request_that_is_late_counts_in_the_score() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    held(world, gpus=DEVICES)
    waiting = held(world)
    bound = row(world, looker)["expected_latest"]
    assert ask(world, looker, "learned")["starts"]["compared"] == 0
    world.now = bound + 60
    starts = ask(world, looker, "learned")["starts"]
    assert (starts["compared"], starts["by_likely"], starts["by_latest"], starts["late"]) == (1, 0, 0, 1)
    world.die((waiting.peer.pid, 1))
    world.leave(waiting)
    reconcile(world)
    starts = ask(world, looker, "learned")["starts"]
    assert (round(starts["compared"]), starts["by_latest"], starts["late"]) == (1, 0, 0), "it gave up, unserved"


def test_leases_of_the_process_that_waits_are_not_soon_free() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    client = held(world, gpus=DEVICES)
    held(world, client)
    seen = row(world, looker)
    assert (seen["expected_start"], seen["expected_latest"]) == (None, None)
    assert "likely" not in seen["why"]


def test_leases_in_which_others_wait_for_more_are_not_soon_free() -> None:
    """Each holds one and asks for one more: they wait for one another, for ever."""
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    for _ in range(DEVICES):
        held(world)
    for lease in list(world.core.state.requests.leases):
        inner = world.connect()
        world.say(inner, "acquire", kind="acquire", request={}, within=lease)
        reconcile(world)
    line = ask(world, looker, "status")["line"]
    assert [entry["expected_start"] for entry in line] == [None] * DEVICES
    assert {pending.within for pending in world.reloaded().requests.pending.values()} == set(
        world.core.state.requests.leases
    )


def test_another_users_lease_is_not_believed_to_be_ones_own() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    held(world, world.connect(0), gpus=DEVICES)
    (lease,) = world.core.state.requests.leases
    stranger = world.connect(1000)
    world.say(stranger, "acquire", kind="acquire", request={}, within=lease)
    reconcile(world)
    assert row(world, looker)["expected_start"] is not None


def test_what_is_sure_is_said_of_enforced_limits_only() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    owner = world.connect()
    for _ in range(2):
        world.say(owner, "acquire", kind="reservation", request={"duration": 600.0})
        reconcile(world)
    held(world, duration=60.0)
    held(world)
    seen = row(world, looker)
    assert seen["sure_by"] == world.now + 600, "the declared minute ends nothing"
    assert "at the latest in 10 min (by the limit of L1)" in seen["why"]
    world = ScriptedWorld()
    looker = world.connect(0)
    held(world, gpus=DEVICES, duration=60.0)
    held(world)
    seen = row(world, looker)
    assert seen["sure_by"] is None
    assert "at the latest" not in seen["why"]
    assert "it declared 60 s" in ask(world, looker, "explain", id=seen["id"])["devices"][0]["why"]


def test_a_time_limit_of_a_job_is_named_and_sure() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    ask(world, looker, "status")
    options = {"cwd": "/", "environment": {}, "time_limit": 7200.0}
    ask(world, looker, "add", request={"gpus": DEVICES}, commands=[["true"]], options=options)
    reconcile(world)
    world.launch()
    reconcile(world)
    held(world)
    seen = row(world, looker)
    grace = world.core.state.settings.grace
    assert seen["sure_by"] == world.now + 7200 + grace
    why = ask(world, looker, "explain", id=seen["id"])["devices"][0]["why"]
    assert "(J1) for another 2 h at the most." in why


def test_a_capped_job_gets_a_forecast() -> None:
    world = ScriptedWorld()
    looker = world.connect(0)
    learn(world, *[30.0] * 6)
    options = {"cwd": "/", "environment": {}, "at_most": 1}
    ask(world, looker, "add", request={}, commands=[["true"]] * 3, options=options)
    reconcile(world)
    second, third = ask(world, looker, "status")["line"]
    assert second["code"] == third["code"] == "capped"
    assert world.now < second["expected_start"] < third["expected_start"]
    assert second["why"].startswith("At most 1 of this sweep run at once, likely in ")
