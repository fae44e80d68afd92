"""While the disk is full, what would free it works all the same: ends of runs, and removals of logs."""

from __future__ import annotations

import signal
from typing import Any

from support.scripted import Client, ScriptedWorld

FULL = 10_000  # writes that fail


def running(**options: Any) -> tuple[ScriptedWorld, Client]:
    """A job that runs, and its submitter."""
    world = ScriptedWorld()
    client = world.connect(0)
    given = {"cwd": "/", "environment": {}, **options}
    world.say(client, "add", request={"gpus": 1}, options=given, commands=[["yes"]])
    settle(world)
    world.launch()
    settle(world)
    assert world.core.state.running[1].pid
    return world, client


def settle(world: ScriptedWorld) -> None:
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
        settle(world)


def test_a_kill_signals_first_and_is_written_when_there_is_room() -> None:
    world, client = running()
    full(world)
    assert ask(world, client, "kill", 1) == {"ok": {"ids": [1], "skipped": [], "ending": [1]}}
    assert world.trees[-1].signals == (signal.SIGTERM, signal.SIGCONT)
    assert world.reloaded().running[1].ending is None
    room(world)
    assert world.reloaded().running[1].ending == "killed by root"
    while world.trees:
        world.see_tree()
        settle(world)
    job = world.reloaded().job(1)
    assert job is not None
    assert (job.state, job.why) == ("killed", "killed by root")


def test_rm_ends_a_run_and_removes_its_log_at_once() -> None:
    world, client = running()
    log = world.core.state.running[1].log
    full(world)
    assert ask(world, client, "rm", 1)["ok"]["ids"] == [1]
    assert world.removed == [log]
    room(world)
    while world.trees:
        world.see_tree()
        settle(world)
    assert world.core.state.job(1) is None


def test_a_time_limit_is_enforced() -> None:
    world, _ = running(time_limit=60)
    full(world)
    world.jump(61)
    settle(world)
    assert world.trees[-1].signals == (signal.SIGTERM, signal.SIGCONT)
    assert "time limit" in (world.core.state.running[1].ending or "")


def test_clean_frees_the_logs_and_says_that_the_rest_is_to_be_asked_again() -> None:
    world, client = running()
    log = world.core.state.running[1].log
    world.end_shell((1, 1), 0)
    settle(world)
    full(world)
    told = ask(world, client, "clean", 1)
    assert told["error"]["code"] == "state"
    assert world.removed == [log]
    world.disk.fail_writes = 0
    assert ask(world, client, "clean", 1)["ok"]["ids"] == [1]


def test_what_only_waits_is_not_said_to_be_killed() -> None:
    world, client = running()
    world.say(client, "add", request={"gpus": 3}, options={"cwd": "/", "environment": {}}, commands=[["true"]])
    settle(world)
    full(world)
    assert ask(world, client, "kill", 2)["error"]["code"] == "state"
    assert ask(world, client, "kill", 1, 2)["ok"] == {
        "ids": [1],
        "skipped": ["2 is waiting, and the disk is full"],
        "ending": [1],
    }
