"""What a user is told follows from what happens and from what they chose; the core tells nobody else."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import Client, ScriptedWorld

from gpulease.broker.core import events
from gpulease.broker.core.events import RunNote
from gpulease.broker.core.notices import warn_at

ADA, BOB = 1000, 1001
FILE = "/home/ada/.config/gpulease/notify.json"


def reconcile(world: ScriptedWorld) -> None:
    for _ in range(6):
        world.turn()
        while world.samples:
            world.answer_sample()
        while world.checks:
            world.answer_check()
        while world.launches:
            world.launch()
    world.turn()


def machine(on: str | None = "all", uid: int = ADA) -> tuple[ScriptedWorld, Client]:
    """A world in which `uid` has set an address."""
    world = ScriptedWorld()
    client = world.connect(uid)
    world.say(client, "status")  # the devices are looked at
    if on is not None:
        world.say(client, "notify", file=FILE, events=[on])
    reconcile(world)
    return world, client


def add(world: ScriptedWorld, client: Client, **options: Any) -> None:
    given = {"cwd": "/", "environment": {}, **options}
    world.say(client, "add", request={"gpus": 1}, commands=[["python", "train.py", "--key=hidden"]], options=given)
    reconcile(world)


def end(world: ScriptedWorld, id: int, code: int, out_of_memory: bool = False, run: int = 1) -> None:
    world.end_shell((id, run), code)
    world.turn()
    while world.ends:
        job = world.ends.pop(0).job
        world.ready.append(events.EndRead(job.id, job.run, RunNote(job.pid, code), out_of_memory, None))
        world.turn()
    reconcile(world)


def told(world: ScriptedWorld) -> list[tuple[int, str]]:
    return [(one.uid, one.notice["event"]) for one in world.notices]


def test_a_job_tells_how_it_ended_with_the_first_two_words_of_its_command() -> None:
    world, ada = machine()
    add(world, ada)
    add(world, ada)
    end(world, 1, 0)
    end(world, 2, 3)
    assert told(world) == [(ADA, "ended"), (ADA, "failed")]
    failed = world.notices[1]
    assert failed.file == FILE
    assert (failed.notice["job"], failed.notice["name"], failed.notice["exit_code"]) == (2, "python train.py", 3)
    assert "hidden" not in str(world.notices)


def test_who_chose_nothing_is_told_of_nothing_and_nobody_is_told_of_others() -> None:
    world, ada = machine()
    bob = world.connect(BOB)
    add(world, bob)
    end(world, 1, 1)
    world.say(ada, "notify", clear=True)
    reconcile(world)
    add(world, ada)
    end(world, 2, 1)
    assert told(world) == []


@pytest.mark.parametrize(
    ("on", "notify", "found"),
    [
        ("none", None, []),
        ("none", ["ended"], ["ended"]),
        ("all", ["none"], []),
        ("ended", ["failed"], []),
    ],
)
def test_what_a_job_says_itself_counts_before_what_its_user_chose(
    on: str, notify: list[str] | None, found: list[str]
) -> None:
    world, ada = machine(on)
    add(world, ada, **({} if notify is None else {"notify": notify}))
    end(world, 1, 0)
    assert [event for _, event in told(world)] == found


def test_a_job_that_asks_for_notices_without_an_address_is_refused() -> None:
    world, ada = machine(on=None)
    world.say(ada, "add", request={}, commands=[["true"]], options={"cwd": "/", "environment": {}, "notify": ["ended"]})
    world.turn()
    (error,) = [one.message["error"] for one in world.sent]
    assert "gpulease notify set" in error["next_step"]


@pytest.mark.parametrize("wrong", ["ended", [7], {"x": 1}, ["ended"] * 2000, ["bogus"], [[]]])
def test_a_stranger_can_say_nothing_wrong_about_notices(wrong: Any) -> None:
    world, ada = machine()
    world.say(ada, "add", request={}, commands=[["true"]], options={"cwd": "/", "environment": {}, "notify": wrong})
    world.turn()
    assert wrong == ["ended"] * 2000 or "error" in world.sent[0].message


@pytest.mark.parametrize("file", ["relative", "", "/with\0zero"])
def test_a_path_that_is_none_is_refused(file: str) -> None:
    world, ada = machine(on=None)
    world.say(ada, "notify", file=file)
    world.turn()
    assert world.sent[0].message["error"]["code"] == "usage"


def test_out_of_memory_is_told_of_also_if_the_job_runs_again_and_as_failed_if_only_that_was_chosen() -> None:
    world, ada = machine()
    add(world, ada, retry=1)
    end(world, 1, 1, out_of_memory=True)
    assert told(world) == [(ADA, "out-of-memory")]
    assert world.notices[0].notice["state"] == "waiting"
    world.say(ada, "notify", file=FILE, events=["failed"])
    reconcile(world)
    end(world, 1, 1, out_of_memory=True, run=2)
    assert told(world)[1:] == [(ADA, "failed")]


def test_what_its_user_ended_is_not_told_and_what_another_ended_is() -> None:
    world, ada = machine()
    root = world.connect(0)
    for _ in range(2):
        add(world, ada, hold=True)
    world.say(ada, "kill", select={"ids": [[1, 1]]})
    reconcile(world)
    world.say(root, "kill", select={"ids": [[2, 2]]})
    reconcile(world)
    assert told(world) == [(ADA, "failed")]
    assert world.notices[0].notice["why"] == "killed by root"


def test_a_turn_is_told_of_only_after_a_wait() -> None:
    world, ada = machine("turn")
    for _ in range(4):
        add(world, ada)
    assert told(world) == []
    world.jump(120)
    reconcile(world)
    end(world, 1, 0)
    assert told(world) == [(ADA, "turn")]
    assert (world.notices[0].notice["job"], world.notices[0].notice["waited"]) == (4, pytest.approx(120))


def reserve(world: ScriptedWorld, client: Client, seconds: float) -> str:
    world.say(client, "acquire", request={"gpus": 1, "duration": seconds}, kind="reservation", note="paper")
    reconcile(world)
    id = list(world.core.state.requests.leases)[-1]
    world.say(client, "taken", id=id)
    reconcile(world)
    return id


def pass_time(world: ScriptedWorld, seconds: float) -> None:
    world.jump(seconds)
    reconcile(world)


def test_the_end_of_a_reservation_is_told_of_once_before_and_later_if_it_was_renewed() -> None:
    world, ada = machine("lease-ending")
    id = reserve(world, ada, 3600)
    pass_time(world, 2000)
    world.say(ada, "renew", what=[id], duration=3600)
    reconcile(world)
    pass_time(world, 1500)
    assert told(world) == []
    world.restart()
    pass_time(world, 1550)
    assert told(world) == [(ADA, "lease-ending")]
    notice = world.notices[0].notice
    assert (notice["lease"], notice["note"]) == (id, "paper")
    assert 0 < notice["until"] - notice["time"] <= 600
    pass_time(world, 5000)
    assert len(world.notices) == 1


def test_a_lease_that_was_given_back_is_not_told_of() -> None:
    world, ada = machine("lease-ending")
    id = reserve(world, ada, 3600)
    world.say(ada, "release", what=[id])
    reconcile(world)
    pass_time(world, 4000)
    assert told(world) == []


@pytest.mark.parametrize(
    ("left", "before", "expected"), [(3600, 600, 3000), (600, 600, 300), (900, 600, 450), (119, 600, None)]
)
def test_the_warning_comes_before_the_end_and_not_in_the_first_half(
    left: float, before: float, expected: float | None
) -> None:
    assert warn_at(0, left, before) == expected


def test_a_broken_gpu_is_told_once_to_its_holder_and_to_managers_and_to_a_hook() -> None:
    world, ada = machine("gpu-broken")
    bob, root = world.connect(BOB), world.connect(0)
    for client in (bob, root):
        world.say(client, "notify", file="/x/notify.json", events=["gpu-broken"])
    world.say(root, "set", name="on-broken", value="tell admins")
    reconcile(world)
    id = reserve(world, ada, 3600)
    (uuid,) = world.core.state.requests.leases[id].devices
    world.lost[uuid] = "GPU is lost"
    for _ in range(3):
        pass_time(world, 2)
    assert sorted(told(world)) == [(0, "gpu-broken"), (ADA, "gpu-broken")]
    by_user = {one.uid: one.notice for one in world.notices}
    assert (by_user[ADA]["lease"], by_user[0]["users"]) == (id, ["user1000"])
    assert [(one.name, one.about["uuid"]) for one in world.hooked] == [("on-broken", uuid)]
    del world.lost[uuid]
    pass_time(world, 2)
    world.lost[uuid] = "GPU is lost"
    pass_time(world, 2)
    assert len(world.notices) == 4


def test_a_broker_that_cannot_become_its_users_takes_no_address_of_theirs() -> None:
    world, ada = machine(on=None)
    world.core.state.about = world.core.state.about._replace(kind="shared")
    world.say(ada, "notify", file=FILE)
    world.turn()
    assert world.sent[0].message["error"]["code"] == "not-permitted"


def test_what_was_chosen_outlives_the_broker() -> None:
    world, ada = machine("failed")
    world.restart()
    ada = world.connect(ADA)
    world.say(ada, "notify")
    world.turn()
    assert world.sent[0].message["ok"] == {"file": FILE, "events": ["failed"]}
