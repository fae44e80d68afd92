"""While the disk is full, what would free it works all the same: ends of runs, and removals of logs."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.scripted import Client, ScriptedWorld

FULL = 10_000  # writes that fail


def running(**options: Any) -> tuple[ScriptedWorld, Client]:
    """A job that runs, and its submitter."""
    world = ScriptedWorld()
    client = world.connect(0)
    given = {"cwd": "/", "environment": {}, **options}
    world.say(client, "add", request={"gpus": 1}, options=given, commands=[["yes"]])
    reconcile(world)
    world.launch()
    reconcile(world)
    assert world.core.state.jobs.running[1].pid
    return world, client


def reconcile(world: ScriptedWorld) -> None:
    """All that follows at once; the driver answers."""
    while world.ready or world.samples or world.checks:
        if world.samples:
            world.answer_sample()
        if world.checks:
            world.answer_check()
        world.turn()


def ask(world: ScriptedWorld, client: Client, verb: str, *ids: int) -> Any:
    world.say(client, verb, select={"ids": [[id, id] for id in ids]})
    world.turn()
    return next(one.message for one in world.sent if one.peer is client.peer)


def full(world: ScriptedWorld) -> None:
    world.disk.fail_writes = FULL


def room(world: ScriptedWorld) -> None:
    world.disk.fail_writes = 0
    for _ in range(20):
        world.until_next_alarm()
        reconcile(world)


def test_a_kill_signals_first_and_is_written_when_there_is_room() -> None:
    world, client = running()
    full(world)
    assert ask(world, client, "kill", 1) == {"ok": {"ids": [1], "skipped": [], "ending": [1]}}
    assert world.trees[-1].signals == (signal.SIGTERM, signal.SIGCONT)
    assert world.reloaded().jobs.running[1].ending is None
    room(world)
    assert world.reloaded().jobs.running[1].ending == "killed by root"
    while world.trees:
        world.see_tree()
        reconcile(world)
    job = world.reloaded().jobs.get(1)
    assert job is not None
    assert (job.state, job.why) == ("killed", "killed by root")


def test_rm_ends_a_run_and_removes_its_log_at_once() -> None:
    world, client = running()
    log = world.core.state.jobs.running[1].spec.log
    full(world)
    assert ask(world, client, "rm", 1)["ok"]["ids"] == [1]
    assert world.removed == [log]
    room(world)
    while world.trees:
        world.see_tree()
        reconcile(world)
    assert world.core.state.jobs.get(1) is None


def test_a_time_limit_is_enforced() -> None:
    world, _ = running(time_limit=60)
    full(world)
    world.jump(61)
    reconcile(world)
    assert world.trees[-1].signals == (signal.SIGTERM, signal.SIGCONT)
    assert "time limit" in (world.core.state.jobs.running[1].ending or "")


def test_clean_frees_the_logs_and_says_that_the_rest_is_to_be_asked_again() -> None:
    world, client = running()
    log = world.core.state.jobs.running[1].spec.log
    world.end_shell((1, 1), 0)
    reconcile(world)
    full(world)
    reply = ask(world, client, "clean", 1)
    assert reply["error"]["code"] == "state"
    assert world.removed == [log]
    world.disk.fail_writes = 0
    assert ask(world, client, "clean", 1)["ok"]["ids"] == [1]


def test_what_only_waits_is_not_said_to_be_killed() -> None:
    world, client = running()
    world.say(client, "add", request={"gpus": 3}, options={"cwd": "/", "environment": {}}, commands=[["true"]])
    reconcile(world)
    full(world)
    assert ask(world, client, "kill", 2)["error"]["code"] == "state"
    assert ask(world, client, "kill", 1, 2)["ok"] == {
        "ids": [1],
        "skipped": ["2 is waiting, and the disk is full"],
        "ending": [1],
    }


def refused_at_last(world: ScriptedWorld, client: Client) -> Any:
    """The error that a client gets within a minute of a full disk."""
    until = world.now + 60
    while world.now < until:
        full(world)
        world.turn()
        for one in world.sent:
            if one.peer is client.peer and "error" in one.message:
                return one.message["error"]
        world.until_next_alarm()
    raise AssertionError("it heard nothing")


def test_a_batch_that_stops_half_way_says_how_many_are_queued() -> None:
    """Before, its client heard nothing until there was room again."""
    world = ScriptedWorld()
    client = world.connect(0)
    commands = [["true"]] * 1000
    world.say(client, "add", request={"gpus": 1}, options={"cwd": "/", "environment": {}}, commands=commands)
    while [one.left for one in world.core.state.jobs.adding.values()] != [600]:
        world.turn()
        while world.samples:
            world.answer_sample()
    reply = refused_at_last(world, client)
    assert "400 jobs are queued, as 1-400, and the last 600 are not" in reply["what"]
    assert "gpulease rm 1-400" in reply["next_step"]
    assert not world.core.state.jobs.adding
    room(world)
    assert world.core.state.jobs.get(400) is not None
    assert world.core.state.jobs.get(401) is None


def test_a_batch_that_a_lack_of_memory_stops_half_way_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, it was said to have failed, and some of its jobs were queued: who added them again had them twice."""
    world = ScriptedWorld()
    client = world.connect(0)
    commands = [["true"]] * 1000
    world.say(client, "add", request={"gpus": 1}, options={"cwd": "/", "environment": {}}, commands=commands)
    write = world.disk.write

    def exhausted(table: str, key: str, document: Any) -> None:
        if table == "jobs" and int(key) > 400:
            raise MemoryError
        write(table, key, document)

    monkeypatch.setattr(world.disk, "write", exhausted)
    reply: list[Any] = []
    while not reply:
        world.turn()
        while world.samples:
            world.answer_sample()
        reply = [one.message["error"] for one in world.sent if one.peer is client.peer and "error" in one.message]
    assert "MemoryError" in reply[0]["what"]
    assert "400 jobs are queued, as 1-400, and the last 600 are not" in reply[0]["what"]


def test_a_kill_of_many_that_stops_half_way_says_how_many_were_killed() -> None:
    world = ScriptedWorld()
    client = world.connect(0)
    held = {"cwd": "/", "environment": {}, "hold": True}
    world.say(client, "add", request={"gpus": 1}, options=held, commands=[["true"]] * 500)
    reconcile(world)
    world.say(client, "kill", select={"all": True})
    world.turn()
    reply = refused_at_last(world, client)
    assert "done for 100 jobs before" in reply["what"]


def test_whoever_waits_for_a_time_is_told_when_it_is_over() -> None:
    """Before, it waited until there was room again."""
    world, _ = running()
    client = world.connect()
    world.say(client, "acquire", request={"gpus": 3}, kind="acquire", wait=5.0)
    reconcile(world)
    (id,) = world.core.state.requests.pending
    full(world)
    for _ in range(20):
        world.until_next_alarm()
        world.turn()
        if [one for one in world.sent if one.peer is client.peer and "error" in one.message]:
            break
    else:
        raise AssertionError("nobody told it")
    assert id not in world.core.state.requests.pending
    assert id in world.reloaded().requests.pending
    room(world)
    assert id not in world.reloaded().requests.pending


def test_a_full_disk_is_tried_now_and_then_and_logged_once() -> None:
    """Before, each turn that could grant nothing made one more every five seconds, and each wrote to the log."""
    world, client = running()
    world.say(client, "add", request={"gpus": 1}, options={"cwd": "/", "environment": {}}, commands=[["true"]])
    full(world)
    world.end_shell((1, 1), 0)
    turns, until = world.turns, world.now + 600
    while world.now < until:
        world.disk.fail_writes = FULL
        world.until_next_alarm()
        while world.samples:
            world.outside["GPU-1"] = world.turns  # something changes with each sample
            world.answer_sample()
        while world.checks:
            world.answer_check()
        world.turn()
    assert world.turns - turns < 1500  # a sample every two seconds, a check, and one more try every five
    assert len(world.logs) < 10
