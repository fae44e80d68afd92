"""Safe-gpu's lock stops nobody for long, however its holders take turns."""

from __future__ import annotations

from support.kept_events import kept_events
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core.events import CheckRefused
from gpulease.broker.core.state.devices import IGNORED_FOR


def asking() -> tuple[ScriptedWorld, Client]:
    """A client that wants a device, which is being checked."""
    world = ScriptedWorld()
    client = world.connect()
    world.say(client, "acquire", request={"gpus": 1}, kind="run", wait=None)
    world.turn()
    world.answer_sample()
    world.turn()
    return world, client


def refuse(world: ScriptedWorld, user: str, pid: int) -> None:
    """The lock is held when the check is to begin; and the broker tries again."""
    check = world.checks.pop(0)
    world.ready.append(CheckRefused(check.revision, "Somebody is choosing.", True, user, pid))
    world.turn()
    while not world.checks:
        world.until_next_alarm()
        if world.samples:
            world.answer_sample()
        world.turn()


def refused_until_passed(world: ScriptedWorld, *users: str) -> float:
    """Seconds that pass until the first of them is not waited for, each refusal being by another process."""
    began = world.now
    for pid in range(100, 10_000):
        refuse(world, users[pid % len(users)], pid)
        if world.checks[0].ignored_users & set(users):
            return world.now - began
    raise AssertionError("nobody was ever passed by")


def test_a_user_is_waited_for_ten_seconds_whatever_number_of_processes_hold_it_in_turn() -> None:
    world, _ = asking()
    assert 10 <= refused_until_passed(world, "mallory") < 11
    events = [event for event in kept_events(world.disk, 0.0, 100) if event.what == "passed-by"]
    assert [event.fields["user"] for event in events] == ["mallory"]


def test_two_users_who_take_turns_gain_nothing() -> None:
    world, _ = asking()
    assert refused_until_passed(world, "mallory", "eve") < 11


def test_another_user_is_waited_for_all_the_same() -> None:
    world, _ = asking()
    refused_until_passed(world, "mallory")
    refuse(world, "grace", 7)
    assert world.checks[0].ignored_users == {"mallory"}


def test_short_choices_now_and_then_are_forgiven() -> None:
    world, _ = asking()
    for _ in range(40):
        refuse(world, "grace", 7)
        refuse(world, "grace", 7)
        world.jump(30)
    assert not world.checks[0].ignored_users


def test_who_lets_go_in_time_is_waited_for_again_and_again() -> None:
    """Where many use safe-gpu, each grant may have to wait for a while."""
    world, client = asking()
    for _ in range(5):
        began = world.now
        while world.now - began < 8:
            refuse(world, "grace", 7)
        assert not world.checks[0].ignored_users
        world.answer_check()
        world.turn()
        world.say(client, "acquire", request={"gpus": 1}, kind="run", wait=None)
        world.say(client, "release", what=[next(iter(world.core.state.requests.leases))])
        world.turn()
        while not world.checks:
            world.until_next_alarm()
            if world.samples:
                world.answer_sample()
            world.turn()


def test_who_was_passed_by_is_waited_for_again_after_an_hour() -> None:
    world, _ = asking()
    refused_until_passed(world, "mallory")
    world.jump(IGNORED_FOR)
    refuse(world, "grace", 7)
    assert not world.checks[0].ignored_users
