"""What ended long ago is forgotten, by age and by number, a little in each turn; and chains of jobs are walked so."""

from __future__ import annotations

from typing import Any

import pytest
from support.kept_events import kept_events
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core import jobs
from gpulease.model.store import HistoryEvent, Which
from gpulease.planner.settings import Settings


@pytest.fixture
def world() -> ScriptedWorld:
    made = ScriptedWorld()
    made.memory = 0.0
    made.say(made.connect(), "status")
    made.turn()
    made.answer_sample()
    made.turn()
    return made


def do(world: ScriptedWorld, client: Client, verb: str, **fields: Any) -> None:
    world.say(client, verb, **fields)
    while world.ready:
        world.turn()


def add(world: ScriptedWorld, client: Client, number: int, **options: Any) -> None:
    given = {"cwd": "/", "environment": {}, **options}
    do(world, client, "add", request={}, options=given, commands=[["true"]] * number)


def ended(world: ScriptedWorld, uid: int, number: int) -> None:
    client = world.connect(uid)
    add(world, client, number)
    do(world, client, "kill", select={"all": True})


def pass_time(world: ScriptedWorld, seconds: float) -> list[int]:
    """How many jobs were forgotten in each turn."""
    counts, until = [], world.now + seconds
    while world.alarms and world.alarms[0][0] <= until:
        before = len(world.disk.job_rows())
        world.until_next_alarm()
        world.turn()
        counts.append(before - len(world.disk.job_rows()))
    world.now = until
    return counts


def ids(world: ScriptedWorld) -> list[int]:
    return [row.id for row in world.disk.job_rows()]


def test_of_each_user_the_newest_ended_jobs_are_kept(world: ScriptedWorld) -> None:
    ended(world, 1000, 350)
    ended(world, 1001, 50)
    do(world, world.connect(0), "set", name="keep-ended", value="60")
    forgotten = pass_time(world, 200)
    assert max(forgotten) <= jobs.FORGOTTEN
    assert ids(world) == [*range(291, 351), *range(351, 401)]
    assert world.core.state.jobs.counts["killed"] == 110
    assert dict(world.core.state.jobs.over) == {1000: 60, 1001: 50}


def test_ended_jobs_are_kept_for_a_time_and_those_that_wait_for_ever(world: ScriptedWorld) -> None:
    ended(world, 1000, 30)
    add(world, world.connect(1000), 5)
    do(world, world.connect(0), "set", name="keep-ended-for", value="1h")
    pass_time(world, 1800)
    assert len(ids(world)) == 35
    pass_time(world, 2000)
    assert ids(world) == [31, 32, 33, 34, 35]


def test_their_logs_and_environments_go_with_them(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str] = []
    monkeypatch.setattr(ScriptedWorld, "_RemoveLogs", lambda world, one: removed.extend(one.logs))
    ended(world, 1000, 4)
    for row in world.disk.jobs(Which(ids=[(2, 4)])):  # the first has never run, so it has no log
        world.disk.write("jobs", str(row["id"]), {**row, "run": 1})
    world.disk.commit()
    do(world, world.connect(0), "set", name="keep-ended", value="1")
    pass_time(world, 100)
    assert [path.rpartition("/")[2] for path in removed] == ["2.log", "3.log"]
    assert len(world.disk.load("environments")) == 1
    do(world, world.connect(1000), "clean")
    assert world.disk.load("environments") == {}


def test_the_variables_of_ended_jobs_are_forgotten_after_a_while(world: ScriptedWorld) -> None:
    assert Settings().keep_env_for == 86400
    client = world.connect(1000)
    do(world, world.connect(0), "set", name="keep-env-for", value="30m")
    add(world, client, 30, environment={"OF": "many"})
    add(world, client, 1, environment={"OF": "one"})
    add(world, client, 1, environment={"OF": "one that waits"}, hold=True)
    do(world, client, "kill", select={"ids": [[1, 31]]})
    pass_time(world, 1700)
    assert len(world.disk.load("environments")) == 3
    do(world, client, "retry", select={"ids": [[31, 31]]})
    do(world, client, "kill", select={"ids": [[31, 31]]})
    pass_time(world, 800)
    assert sorted(kept["OF"] for kept in world.disk.load("environments").values()) == ["one", "one that waits"]
    pass_time(world, 1800)
    assert [kept["OF"] for kept in world.disk.load("environments").values()] == ["one that waits"]
    assert len(ids(world)) == 32
    assert world.core.state.jobs.environments[1000] < 100
    do(world, client, "retry", select={"ids": [[1, 3]]})
    trouble = world.sent[-1].message["error"]
    assert "over, and its variables were forgotten" in trouble["what"]
    assert "--new-env" in trouble["next_step"]
    do(world, client, "start", select={"ids": [[1, 1]]})
    assert "--new-env" in world.sent[-1].message["error"]["next_step"]


def test_many_environments_are_looked_at_in_pieces(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "ENVIRONMENTS", 3)
    client = world.connect(1000)
    for number in range(10):
        add(world, client, 1, environment={"N": str(number)}, hold=number == 5)
    do(world, world.connect(0), "set", name="keep-env-for", value="1m")
    do(world, client, "kill", select={"ids": [[1, 5], [7, 10]]})
    pass_time(world, 1300)
    assert [kept["N"] for kept in world.disk.load("environments").values()] == ["5"]


def test_they_are_kept_as_long_as_the_job_if_so_set(world: ScriptedWorld) -> None:
    ended(world, 1000, 1)
    do(world, world.connect(0), "set", name="keep-env-for", value="none")
    world.now += 10 * 86400
    pass_time(world, 1300)
    assert len(world.disk.load("environments")) == 1


def test_another_user_cannot_give_a_job_their_variables(world: ScriptedWorld) -> None:
    client = world.connect(1000)
    add(world, client, 1, environment={"OF": "its user"})
    do(world, client, "kill", select={"all": True})
    given = {"environment": {"OF": "root"}}
    do(world, world.connect(0), "retry", select={"ids": [[1, 1]]}, options=given)
    assert [kept["OF"] for kept in world.disk.load("environments").values()] == ["its user"]
    do(world, client, "kill", select={"all": True})
    do(world, client, "retry", select={"ids": [[1, 1]]}, options={"environment": {"OF": "its user, again"}})
    assert [kept["OF"] for kept in world.disk.load("environments").values()] == ["its user, again"]


def test_events_are_forgotten_while_the_broker_runs(world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_EVENTS", 50)
    for number in range(100):
        world.disk.append(HistoryEvent(world.now, "granted", {"id": f"L{number}"}))
    world.disk.commit()
    pass_time(world, 100)
    assert [event.fields["id"] for event in kept_events(world.disk, 0, 1000)] == [
        f"L{number}" for number in range(50, 100)
    ]
    pass_time(world, jobs.KEEP_EVENTS + 100)
    assert kept_events(world.disk, 0, 1000) == []


@pytest.mark.parametrize("chain", [True, False])
def test_a_job_that_many_come_after_frees_a_few_of_them_in_each_turn(world: ScriptedWorld, chain: bool) -> None:
    """One after the other, or all after the first: its end was one turn of as many steps as there are jobs."""
    client, number = world.connect(1000), 3 * jobs.FREED
    add(world, client, 1)
    if chain:
        for id in range(1, number + 1):
            add(world, client, 1, after=[id])
    else:
        add(world, client, number, after=[1])
    changed: list[int] = []
    world.say(client, "kill", select={"ids": [[1, 1]]})
    for _ in range(20):
        before = [row.state for row in world.disk.job_rows()].count("killed")
        world.turn()
        changed.append([row.state for row in world.disk.job_rows()].count("killed") - before)
        world.jump(0)
    assert max(changed) <= jobs.FREED + 1
    assert sum(changed) == number + 1
    assert not any(world.core.state.jobs.dependents.values())


def test_a_request_that_leaves_takes_its_alarm_along(world: ScriptedWorld) -> None:
    client = world.connect(1000)
    world.outside = {f"GPU-{index}": 7 for index in range(3)}
    world.say(client, "acquire", request={"gpus": 3}, kind="get", wait=1e9)
    world.turn()
    while world.samples or world.checks:
        world.answer_sample() if world.samples else world.answer_check()
        world.turn()
    assert any(alarm[1] == "deadline" for alarm in world.alarms)
    world.leave(client)
    world.turn()
    assert not any(alarm[1] == "deadline" for alarm in world.alarms)
