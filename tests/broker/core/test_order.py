"""An order of the administrator's own is followed, bounds nobody's rights, and costs only its own say when it fails."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import DEVICES, ScriptedWorld

from gpulease.broker.core import events
from gpulease.broker.core.order import AGAIN, INTERVAL
from gpulease.errors import UsageError
from gpulease.model.values import Cause, Device, Lease, Owner, Request, Waiting
from gpulease.planner import Limit, Line, Policy, plan
from gpulease.planner.order import MOST, entries, ranked, wrong_with
from gpulease.planner.settings import parse

NOW = 1_000_000.0
PAUSED = Cause("The queue is paused.", "queue paused")
DAY = 86400.0


def machine(count: int) -> list[Device]:
    return [Device(at, f"GPU-{at}", "A100", memory_total=80 << 30, memory_used=0) for at in range(count)]


def line_of(*waiting: Waiting) -> Line:
    line = Line()
    for one in waiting:
        line.add(one)
    return line


def asks(id: str, gpus: int = 1, user: str = "ada", waited: float = 10.0, **more: Any) -> Waiting:
    return Waiting(id, Request(gpus, **more), user, 1, NOW - waited)


def granted(line: Line, order: tuple[str, ...], gpus: int = 1, policy: Policy | None = None, **more: Any) -> list[str]:
    ranking = ranked(line, order)
    done = plan(machine(gpus), (), line, policy or Policy(), NOW, order=ranking, **more)
    return [grant.id for grant in done.grants]


# -------------------------------------------------------------------- the plan


def test_it_goes_before_priority_arrival_patience_and_fair_share() -> None:
    first, urgent, overdue = asks("a", waited=500), asks("b", priority=1), asks("c", waited=DAY)
    line = line_of(first, urgent, overdue, asks("d", user="bob"))
    assert granted(line, (), 2) == ["b", "c"]
    assert granted(line, ("d", "a", "c", "b"), 2) == ["d", "a"]


def test_who_does_not_fit_is_passed_over_and_what_is_left_goes_the_usual_way() -> None:
    line = line_of(asks("wide", 3), asks("a", waited=30), asks("b", waited=20), asks("new", waited=25))
    assert granted(line, ("wide", "b", "a"), 2) == ["b", "a"]
    assert granted(line, ("gone", "wide", "b"), 2) == ["b", "a"]


def test_it_takes_nothing_from_who_was_forced_or_waited_longest() -> None:
    line = line_of(asks("old", waited=15 * DAY), asks("forced")._replace(forced=True), asks("a"), asks("b"))
    assert granted(line, ("b", "a", "old"), 2) == ["forced", "old"]


def test_limits_times_and_closed_kinds_count_as_ever() -> None:
    policy = Policy(limits=(Limit("user", "ada", gpus=1),))
    line = line_of(asks("a"), asks("b"), asks("late", user="bob", not_before=NOW + 60), asks("c", user="bob"))
    assert granted(line, ("late", "b", "a", "c"), 3, policy) == ["b", "c"]
    assert granted(line, ("b", "a", "c"), 3, policy, closed={"run": PAUSED}) == []


def test_a_leased_machine_grants_nothing_whatever_the_order() -> None:
    lease = Lease("L1", "run", ("GPU-0",), Owner(1, "eve", "host", "boot"), NOW)
    line = line_of(asks("a"))
    assert plan(machine(1), [lease], line, Policy(), NOW, order=ranked(line, ["a"])).grants == ()


def test_who_left_or_was_changed_since_is_passed_over() -> None:
    line = line_of(asks("a", waited=40), asks("b", waited=30), asks("c", waited=20), asks("d"))
    ranking = ranked(line, ["d", "c", "b", "a"])
    line.remove("d")
    line.replace(asks("c", 5, waited=20))
    grants = plan(machine(2), (), line, Policy(), NOW, order=ranking).grants
    assert [grant.id for grant in grants] == ["b", "a"]


# -------------------------------------------------------------------- the question and the answer


def test_the_question_is_bounded_and_leaves_out_who_has_no_place() -> None:
    many = [asks(f"{at:05}", waited=5000 - at) for at in range(MOST + 10)]
    line = line_of(*many, asks("forced")._replace(forced=True), asks("blocked")._replace(blocked=PAUSED))
    rows = entries(line, {"ada": 7.5}, NOW)
    assert [row.id for row in rows] == [one.id for one in many[:MOST]]
    assert (rows[0].waited, rows[0].used, rows[0].gpus, rows[0].user) == (5000, 7.5, 1, "ada")
    small = entries(line_of(asks("a"), asks("b")._replace(blocked=PAUSED)), {}, NOW)
    assert [row.id for row in small] == ["a"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["b", "a"], None),
        (["a"], "1 of 2"),
        (["a", "a"], "twice"),
        (["a", "b", "c"], "'c'"),
        (["a", "b", "b"], "twice"),
        (["a", 2], "list of ids"),
        (None, "list of ids"),
        ("ab", "list of ids"),
        ({"a": 1, "b": 2}, "list of ids"),
    ],
)
def test_only_the_same_ids_once_each_are_an_order(told: object, said: str | None) -> None:
    found = wrong_with(("a", "b"), told)
    assert (found is None) if said is None else (found is not None and said in found)


@pytest.mark.parametrize("text", ["a.b:order", "/etc/x.py:order", "none"])
def test_a_function_is_named_by_module_or_path(text: str) -> None:
    assert parse("policy.order", text) == ("" if text == "none" else text)


@pytest.mark.parametrize("text", ["order", "a b:order", "x.py:order.y", "/etc/x.py", "./x.py:order", ":order"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse("policy.order", text)


# -------------------------------------------------------------------- the core


def busy_world(waiting: int = 3) -> tuple[ScriptedWorld, list[str]]:
    """Every device is leased, and some wait, in this order; a function is configured."""
    world = ScriptedWorld()
    world.ready.append(events.ConfigRead({"policy.order": "site:order"}))
    ask(world, {"gpus": DEVICES})
    world.answer_sample()
    world.turn()
    world.answer_check()
    world.turn()
    for _ in range(waiting):
        world.now += 0.001
        ask(world, {"gpus": 1})
    return world, [waiting.id for waiting in world.core.state.requests.line.front(10)]


def ask(world: ScriptedWorld, request: dict[str, Any]) -> None:
    world.say(world.connect(), "acquire", request=request, kind="run")
    world.turn()


def answer(world: ScriptedWorld, told: object, trouble: str | None = None) -> None:
    world.questions.pop(0)
    world.ready.append(events.OrderAnswered("site:order", told, trouble))
    world.turn()


def free_one(world: ScriptedWorld) -> list[str]:
    """Whoever is granted something when all devices are given back but two."""
    lease = next(iter(world.core.state.requests.leases.values()))
    world.outside = {f"GPU-{at}": 7 + at for at in range(DEVICES - 1)}
    world.die((lease.owner.pid or 0, 1))
    for _ in range(20):
        world.turn()
        for _ in range(world.samples):
            world.answer_sample()
        if world.checks:
            world.answer_check()
        if not world.ready:
            world.jump(0.1)
    return [id for id in world.core.state.requests.leases if id != lease.id]


def reconcile(world: ScriptedWorld, answered: Any) -> None:
    """Answer until the whole line was asked about."""
    for _ in range(10):
        world.jump(INTERVAL)
        world.turn()
        while world.questions:
            ids = [row.id for row in world.questions[0].waiting]
            answer(world, answered(ids))


def test_the_answer_decides_who_is_next() -> None:
    world, ids = busy_world()
    reconcile(world, lambda ids: ids[::-1])
    assert free_one(world) == [ids[-1]]


def test_without_an_answer_the_built_in_order_goes_on() -> None:
    world, ids = busy_world()
    assert world.questions
    assert free_one(world) == [ids[0]]


def test_nonsense_costs_only_its_say_and_is_told_once() -> None:
    world, ids = busy_world()
    reconcile(world, lambda ids: ids[::-1])
    for _ in range(60):
        world.jump(1)
        world.turn()
        if world.questions:
            answer(world, ["L999"])
    assert world.core.state.requests.custom_order.failures > 2
    assert world.core.state.requests.custom_order.ranking == ()
    said = [text for text in world.logs if "not followed" in text]
    assert len(said) == 1
    assert "L999" in said[0]
    client = world.connect()
    world.say(client, "set", name="policy.order")
    world.turn()
    row = next(sent.message["ok"]["parameters"][0] for sent in world.sent if sent.peer is client.peer)
    assert "L999" in row["warnings"][0]
    assert free_one(world) == [ids[0]]


def test_a_function_that_fails_is_asked_ever_more_seldom() -> None:
    world, _ = busy_world()
    asked = 0
    for _ in range(400):
        if world.questions:
            asked += 1
            answer(world, None, "it did not answer in time")
        world.jump(0.5)
        world.turn()
    assert 5 <= asked <= 12


def test_an_unchanged_line_is_asked_about_seldom_and_one_question_is_under_way() -> None:
    world, _ = busy_world()
    reconcile(world, list)
    world.questions.clear()
    for _ in range(int(2 * AGAIN)):
        world.jump(0.5)
        world.turn()
        assert len(world.questions) <= 1
        if world.questions:
            answer(world, [row.id for row in world.questions[0].waiting])
            world.jump(AGAIN - 0.6)
            world.turn()
            assert not world.questions
            break
    else:
        raise AssertionError("who waits grows older, and is asked about again")


def test_set_does_not_change_it() -> None:
    world, _ = busy_world()
    client = world.connect(0)
    for value in ("os:getcwd", "default"):
        world.say(client, "set", name="policy.order", value=value)
        world.turn()
        reply = next(sent.message for sent in world.sent if sent.peer is client.peer)
        assert reply["error"]["code"] == "not-permitted"
    assert world.core.state.settings.order == "site:order"
    world.ready.append(events.ConfigRead({}))
    world.turn()
    assert world.core.state.requests.custom_order.function == ""
