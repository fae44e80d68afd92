"""What is about many jobs is done in pieces, each a turn and a commit: others are served in between."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core import add as core_add
from gpulease.broker.core import bulk, subscriptions, turn
from gpulease.model.jobs import OPEN

MANY = 3 * bulk.PIECE + 50
TURNS = 10_000


@pytest.fixture
def world() -> ScriptedWorld:
    """With its devices seen, and none of them free: what is added waits."""
    made = ScriptedWorld()
    made.memory = 0.0
    ask(made, made.connect(), "status", first=True)
    return made


def ask(world: ScriptedWorld, client: Client, verb: str, first: bool = False, **fields: Any) -> Any:
    """The answer, after as many turns as it takes."""
    world.say(client, verb, **fields)
    return answer(world, client, first)[0]


def answer(world: ScriptedWorld, client: Client, first: bool = False) -> tuple[Any, int]:
    """The next one, and how many turns it took."""
    for number in range(TURNS):
        world.turn()
        if first and world.samples:
            world.answer_sample()
        reply = [
            one.message
            for one in world.sent
            if one.peer is client.peer and not {"snapshot", "changed"} & one.message.keys()
        ]
        if reply:
            return reply[0], number + 1
    raise AssertionError("no answer came")


def add(world: ScriptedWorld, client: Client, number: int, **more: Any) -> Any:
    options = {"cwd": "/", "environment": {}, **more.pop("options", {})}
    return ask(world, client, "add", request={}, options=options, commands=[["true"]] * number, **more)


def states(world: ScriptedWorld) -> list[str]:
    return [row.state for row in world.disk.job_rows()]


ALL = {"all": True}


@pytest.mark.parametrize(
    ("verb", "fields", "state"),
    [
        ("kill", {}, "killed"),
        ("edit", {"changes": {"note": "x"}}, "waiting"),
        ("rm", {}, None),
        ("start", {}, "waiting"),
    ],
)
def test_a_verb_about_many_jobs_changes_a_few_in_each_turn(
    world: ScriptedWorld, verb: str, fields: dict[str, Any], state: str | None
) -> None:
    client = world.connect()
    add(world, client, MANY)
    writes: list[int] = []
    world.say(client, verb, select=ALL, **fields)
    while not any("ok" in one.message for one in world.sent if one.peer is client.peer and writes):
        before = world.disk.writes
        world.turn()
        writes.append(world.disk.writes - before)
        assert len(writes) < TURNS
    assert max(writes) <= 3 * bulk.PIECE
    assert len(writes) >= MANY / bulk.PIECE
    (reply,) = [one.message["ok"] for one in world.sent if one.peer is client.peer]
    assert reply == {"ids": list(range(1, MANY + 1)), "skipped": [], "ending": []}
    assert states(world) == ([] if state is None else [state] * MANY)


def test_somebody_else_is_answered_between_two_pieces(world: ScriptedWorld) -> None:
    client, other = world.connect(), world.connect(1001)
    add(world, client, MANY)
    world.say(client, "kill", select=ALL)
    world.turn()
    world.say(other, "ping")
    world.turn()
    assert [one.peer for one in world.sent] == [other.peer]
    assert {"waiting", "killed"} == set(states(world))


def test_jobs_that_are_added_meanwhile_are_not_meant(world: ScriptedWorld) -> None:
    client, other = world.connect(), world.connect()
    add(world, client, MANY)
    world.say(client, "kill", select=ALL)
    world.turn()
    world.say(other, "add", request={}, options={"cwd": "/", "environment": {}}, commands=[["true"]])
    assert answer(world, client)[0]["ok"]["ids"] == list(range(1, MANY + 1))
    assert states(world)[-1] == "waiting"


def test_an_edit_that_is_wrong_for_one_of_many_changes_none(world: ScriptedWorld) -> None:
    client = world.connect()
    add(world, client, MANY)
    add(world, client, 1, options={"after": [1]})
    last = {"after": [MANY + 1]}  # which cannot come after itself
    reply = ask(world, client, "edit", select=ALL, changes={"note": "x", **last})
    assert reply["error"]["code"] == "usage"
    assert all(row.get("note") is None for row in world.disk.jobs())


def test_a_disk_that_is_full_for_a_while_delays_a_request_that_was_begun(world: ScriptedWorld) -> None:
    client = world.connect()
    add(world, client, MANY)
    world.say(client, "kill", select=ALL)
    world.turn()
    world.disk.fail_commits = 2
    world.turn()
    assert not any("error" in one.message for one in world.sent)
    world.disk.fail_commits = 0
    world.jump(10)
    reply, _ = answer(world, client)
    assert reply["ok"]["ids"] == list(range(1, MANY + 1))
    assert states(world) == ["killed"] * MANY


def test_what_was_begun_is_done_for_a_client_that_left(world: ScriptedWorld) -> None:
    client = world.connect()
    add(world, client, MANY)
    world.say(client, "kill", select=ALL)
    world.turn()
    world.leave(client)
    while world.ready:
        world.turn()
    assert states(world) == ["killed"] * MANY


# -------------------------------------------------------------------- adding


def test_a_batch_is_added_in_pieces_and_answered_when_all_are_in(world: ScriptedWorld) -> None:
    number = 3 * core_add.PIECE + 1
    world.say(
        client := world.connect(),
        "add",
        request={},
        options={"cwd": "/", "environment": {}},
        commands=[["true"]] * number,
    )
    reply, turns = answer(world, client)
    assert reply["ok"].items() >= {"first": 1, "last": number}.items()
    assert turns == 4
    assert len(world.core.state.requests.line) == number


def test_a_batch_that_a_broker_began_is_completed_by_the_next_and_no_job_is_there_twice(world: ScriptedWorld) -> None:
    number = 3 * core_add.PIECE + 1
    batch: dict[str, Any] = {
        "request": {},
        "options": {"cwd": "/", "environment": {}},
        "commands": [[str(one)] for one in range(number)],
    }
    client = world.connect()
    world.say(client, "add", token="t", **batch)
    world.turn()
    world.turn()
    world.restart()
    assert 0 < len(world.disk.job_rows()) < number
    client = world.connect()
    world.say(client, "add", token="t", **batch)
    reply, _ = answer(world, client, first=True)
    assert reply["ok"].items() >= {"first": 1, "last": number}.items()
    assert [row["command"] for row in world.disk.jobs()] == [[str(one)] for one in range(number)]
    assert ask(world, client, "add", token="t", **batch)["ok"].items() >= {"first": 1, "last": number}.items()
    assert len(world.disk.job_rows()) == number


def test_a_batch_that_is_sent_again_while_it_is_added_is_added_once(world: ScriptedWorld) -> None:
    number = 3 * core_add.PIECE + 1
    one, two = world.connect(), world.connect()
    for client in (one, two):
        world.say(
            client, "add", token="t", request={}, options={"cwd": "/", "environment": {}}, commands=[["true"]] * number
        )
    answer(world, one)
    reply = [sent.message for sent in world.sent if sent.peer is two.peer] or [answer(world, two)[0]]
    assert reply[0]["ok"].items() >= {"first": 1, "last": number}.items()
    assert len(world.disk.job_rows()) == number


def test_another_users_batches_do_not_make_a_token_forgotten(world: ScriptedWorld) -> None:
    mine, theirs = world.connect(1000), world.connect(1001)
    first = add(world, mine, 1, token="t")
    for number in range(2 * core_add.BATCHES):
        add(world, theirs, 1, token=f"x{number}")
    assert add(world, mine, 1, token="t") == first


# -------------------------------------------------------------------- bounds


def test_words_of_batches_that_come_in_are_counted_by_user(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty word has no length, and costs memory all the same."""
    monkeypatch.setattr(core_add, "MAX_WORDS", 1000)
    part: dict[str, Any] = {"request": {}, "options": {}, "commands": [["x", *[""] * 99]] * 3, "more": True}
    reply = [ask(world, world.connect(1000), "add", **part) for _ in range(4)]
    assert [next(iter(one)) for one in reply] == ["ok", "ok", "ok", "error"]
    assert reply[-1]["error"]["code"] == "too-much"
    assert "1000 words" in reply[-1]["error"]["what"]
    assert "ok" in ask(world, world.connect(1001), "add", **part)


def test_jobs_are_bounded_by_user(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_add, "MAX_OF_USER", 5)
    client = world.connect(1000)
    assert "ok" in add(world, client, 5)
    reply = add(world, client, 1)["error"]
    assert (reply["code"], "more than 5 jobs" in reply["what"]) == ("too-much", True)
    assert "ok" in add(world, world.connect(1001), 5)
    ask(world, client, "kill", select=ALL)
    assert "ok" in add(world, client, 1)


def test_variables_of_jobs_are_bounded_by_user_and_counted_through_restarts(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_add, "MAX_ENVIRONMENTS", 2500)

    def reply(uid: int, value: str) -> Any:
        options = {"environment": {"A": value * 1000}}
        world.say(client := world.connect(uid), "add", request={}, options={"cwd": "/", **options}, commands=[["true"]])
        return answer(world, client, first=True)[0]

    assert all("ok" in reply(1000, value) for value in ("x", "x", "y", "x"))
    world.restart()
    assert reply(1000, "z")["error"]["code"] == "too-much"
    assert "ok" in reply(1000, "x")
    assert "ok" in reply(1001, "z")
    world.say(client := world.connect(1000), "kill", select=ALL)
    answer(world, client, first=True)
    assert reply(1000, "z")["error"]["code"] == "too-much"
    ask(world, client, "rm", select=ALL)
    assert "ok" in reply(1000, "z")


def test_batches_that_are_added_at_the_same_time_do_not_pass_the_bound_together(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was counted when it began, while the others were not in the queue yet."""
    number = 2 * core_add.PIECE
    monkeypatch.setattr(core_add, "MAX_OF_USER", number + 1)
    batch: dict[str, Any] = {"request": {}, "options": {"cwd": "/", "environment": {}}}
    batch["commands"] = [["true"]] * number
    first, second = world.connect(1000), world.connect(1000)
    world.say(first, "add", token="first", **batch)
    world.turn()
    world.leave(first)
    reply = ask(world, second, "add", token="second", **batch)["error"]
    assert reply["code"] == "too-much"
    assert ask(world, second, "add", token="first", **batch)["ok"]["last"] == number
    assert len(world.disk.job_rows()) == number
    assert "ok" in add(world, second, 1)


def test_a_batch_that_was_begun_is_completed_though_it_fills_the_bound(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 2 * core_add.PIECE
    monkeypatch.setattr(core_add, "MAX_OF_USER", number)
    batch: dict[str, Any] = {"request": {}, "options": {"cwd": "/", "environment": {}}}
    batch["commands"] = [["true"]] * number
    world.say(world.connect(1000), "add", token="t", **batch)
    world.turn()
    world.restart()
    world.say(client := world.connect(1000), "add", token="t", **batch)
    assert answer(world, client, first=True)[0]["ok"]["last"] == number


def test_what_a_user_waits_for_is_bounded(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_RANGES", 10)
    client = world.connect(1000)
    add(world, client, 40)
    odd = {"ids": [[id, id] for id in range(1, 20, 2)]}
    world.say(world.connect(1000), "subscribe", topics=["jobs"], select=odd)
    world.say(last := world.connect(1000), "subscribe", topics=["jobs"], select={"ids": [[30, 30]]})
    reply, _ = answer(world, last)
    assert reply["error"]["code"] == "too-much"
    assert "10 ranges" in reply["error"]["what"]


def test_what_waits_for_the_first_look_at_the_devices_is_bounded_by_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "MAX_AWAITING", 3)
    world = ScriptedWorld()
    for _ in range(5):
        world.say(world.connect(1000), "status")
    world.say(world.connect(1001), "status")
    world.turn()
    assert [one.message["error"]["code"] for one in world.sent] == ["too-much"] * 2
    world.answer_sample()
    world.turn()
    assert sum("ok" in one.message for one in world.sent) == 4


# -------------------------------------------------------------------- being told of many


def test_a_wait_for_many_that_ended_is_told_of_all_of_them_in_parts(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred thousand rows in one message are more than a client may leave unread."""
    monkeypatch.setattr(subscriptions, "ROWS", 50)
    client = world.connect()
    add(world, client, MANY)
    ask(world, client, "kill", select=ALL)
    waiting = world.connect()
    world.say(waiting, "subscribe", topics=["jobs"], select=ALL)
    messages: list[Any] = []
    for _ in range(100):
        world.turn()
        messages += [one.message for one in world.sent if one.peer is waiting.peer]
    rows = [next(iter(message.values())) for message in messages]
    assert [len(one["jobs"]) for one in rows] == [50] * (MANY // 50)
    assert [one["open"] for one in rows[:-1]] == [MANY - 50 * number for number in range(1, len(rows))]
    assert rows[-1]["open"] == 0
    assert len(waiting.shown["jobs"]) == MANY


def test_changes_during_a_snapshot_in_parts_are_told_behind_it(
    world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "ROWS", 50)
    client = world.connect()
    add(world, client, MANY)
    ask(world, client, "kill", select={"ids": [[1, MANY - 1]]})
    waiting = world.connect()
    world.say(waiting, "subscribe", topics=["jobs"], select=ALL)
    for _ in range(5):
        world.turn()
    world.say(client, "kill", select={"ids": [[MANY, MANY]]})
    for _ in range(100):
        world.turn()
        world.jump(1)
    assert len(waiting.shown["jobs"]) == MANY
    assert waiting.open == 0
    assert not set(states(world)) & set(OPEN)


def test_words_that_commands_have_in_common_are_kept_once_until_all_are_queued(world: ScriptedWorld) -> None:
    """A hundred thousand commands took fifty megabytes, of which the broker gave little back."""
    client = world.connect()
    commands = [["".join(("train", ".py")), "--seed", str(seed)] for seed in range(3)]
    world.say(client, "add", request={}, options={"cwd": "/", "environment": {}}, commands=commands, more=True)
    world.turn()
    (kept,) = world.core.state.jobs.parts[client.peer].commands
    assert [list(words) for words in kept] == commands
    assert len({id(words[0]) for words in kept}) == 1 < len({id(words[0]) for words in commands})


def test_the_history_is_read_once_for_each_user_in_a_turn(world: ScriptedWorld) -> None:
    mine, other = [world.connect() for _ in range(3)], world.connect(uid=1001)
    for client in (*mine, other):
        world.say(client, "usage")
    answered = []
    for _ in mine:
        world.turn()
        answered.append([one.peer for one in world.sent])
    assert answered == [[mine[0].peer, other.peer], [mine[1].peer], [mine[2].peer]]
