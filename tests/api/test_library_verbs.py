"""The verbs as functions: they do and say what the command line does, and their replies are as they are typed."""

from __future__ import annotations

from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_until

import gpulease
from gpulease.errors import NotFound, NotGranted, UsageError, WrongState
from gpulease.protocol.messages import REPLIES

pytestmark = pytest.mark.usefixtures("inside")


def held(count: int = 1, **more: Any) -> list[int | str]:
    return [gpulease.submit(["true"], hold=True, **more).id for _ in range(count)]


def test_jobs_are_chosen_by_ids_ranges_jobs_words_labels_and_states() -> None:
    ids = held(5, label="many")
    job = gpulease.jobs()[0]
    assert gpulease.kill(job)["ids"] == [1]
    assert gpulease.kill("2-3", 9) == {"ids": [2, 3], "skipped": ["9 is not there, or not yours"], "ending": []}
    assert gpulease.kill("last")["ids"] == [5]
    assert [row["id"] for row in gpulease.show(label="many", state="held")] == [4]
    left = [f"{id} is killed" for id in (1, 2, 3, 5)]
    assert gpulease.kill("all") == {"ids": [4], "skipped": left, "ending": []}
    assert gpulease.ls(ids)["counts"] == {"killed": 5}
    assert gpulease.retry([1, job, "2"])["ids"] == [1, 2]


@pytest.mark.parametrize("jobs", [(), ("",), ([],), (True,), (1.5,), (None,), ("x",), ("all", 3)])
def test_what_names_no_job_is_refused_and_does_nothing(jobs: tuple[Any, ...]) -> None:
    held(2)
    verbs: list[Any] = [gpulease.kill, gpulease.rm, gpulease.start, gpulease.show]
    for verb in verbs if jobs == ([],) else [*verbs, gpulease.wait]:  # for no job at all one can wait
        with pytest.raises(UsageError):
            verb(*jobs)
    assert gpulease.ls()["counts"] == {"held": 2}


def test_waiting_jobs_are_paused_resumed_moved_edited_and_started() -> None:
    gpulease.pause(queue=True)
    first, second = gpulease.submit(["true"]), gpulease.submit(["true"], mem="6G", label="a")
    assert gpulease.move(second)["ids"] == [second.id]
    assert [row["id"] for row in gpulease.ls()["jobs"]] == [second.id, first.id]
    assert gpulease.edit(second, mem=None, gpus=2, new_label="b", name="n")["ids"] == [second.id]
    row = gpulease.show(label="b")[0]
    assert (row["request"]["memory"], row["request"]["gpus"], row["name"]) == (None, 2, "n")
    with pytest.raises(UsageError, match="Nothing to change"):
        gpulease.edit(second)
    assert gpulease.explain(first)["why"]
    assert gpulease.start(first)["ids"] == [first.id]
    gpulease.resume(queue=True)
    assert [job["state"] for job in gpulease.wait(first, second, timeout=60)] == ["complete", "complete"]
    with pytest.raises(WrongState):
        gpulease.explain(first)
    assert gpulease.clean()["ids"] == [1, 2]


def test_a_running_job_is_paused_and_not_forgotten() -> None:
    job = gpulease.submit(["sleep", "600"])
    wait_until(lambda: job.state == "running")
    assert gpulease.pause(job)["ids"] == [job.id]
    assert job.state == "paused"
    with pytest.raises(WrongState, match="cannot be deleted"):
        gpulease.clean(job)
    with pytest.raises(NotGranted):
        gpulease.wait(job, timeout=0)
    assert gpulease.resume("last")["ids"] == [job.id]
    assert gpulease.rm(job)["ids"] == [job.id]


def test_leases_are_renewed_released_and_told(queue: QueueSite) -> None:
    queue.run("get", "-n", "2", "--for", "1h")
    assert gpulease.renew(duration="2h")[0]["devices"] == ["0", "1"]
    assert gpulease.explain("L1")["lease"] is not None
    assert gpulease.release("0")[0]["id"] == "L1"
    assert gpulease.release(mine=True) == []
    with pytest.raises(UsageError):
        gpulease.release(0, mine=True)
    with pytest.raises(NotFound):
        gpulease.release("L1")
    assert gpulease.exclude(3, note="fan") == ["3"]
    assert gpulease.include(3) == ["3"]
    assert [event["what"] for event in gpulease.events()] == ["granted", "renewed", "ended", "excluded", "included"]
    assert gpulease.set("grace", "7")[0]["value"] == "7s"
    assert len(gpulease.set()) > 5


def test_a_connection_to_a_broker_that_ended_is_not_used(queue: QueueSite) -> None:
    [id] = held()
    queue.kill_broker()
    assert gpulease.kill(id)["ids"] == [id]


def test_every_reply_has_the_fields_that_it_is_typed_with(queue: QueueSite) -> None:
    queue.run("get", "--for", "1h")
    gpulease.pause(queue=True)  # what waits is to be there still when the next verb is about it
    job, all = held(at="in 1h")[0], {"all": True}
    waiting = gpulease.submit(["true"], at="in 1h").id
    words: dict[str, dict[str, Any]] = {
        "renew": {"duration": 60.0},
        "explain": {"id": f"J{waiting}"},
        "show": {"select": all},
        "edit": {"select": all, "changes": {"note": "x"}},
        "move": {"id": waiting, "index": 0},
        "resume": {"select": {"ids": [[job, job]]}},
        "start": {"select": {"ids": [[job, job]]}},
        "release": {"mine": True},
        "kill": {"select": all},
        "retry": {"select": all},
        "rm": {"select": all},
        "add": {"request": {}, "commands": [["sleep", "600"]], "options": {"cwd": "/", "environment": {}}},
        "pause": {"select": {"last": True}},
        "moved": {"jobs": []},
        "let_go": {"jobs": []},
        "exclude": {"what": ["0"]},
        "include": {"what": ["0"]},
        "taken": {"id": "L1"},
        "cancel": {"id": "L999"},
    }
    order = [*words, *(verb for verb in REPLIES if verb not in words and verb != "stop"), "stop"]
    for verb in order:
        if verb == "pause":
            gpulease.resume(queue=True)
            wait_until(lambda: gpulease.show("last")[0]["state"] == "running")
        typed = REPLIES[verb]
        reply = queue.ask(verb, **words.get(verb, {}))
        known = fits(verb, reply, get_args(typed)[0] if get_origin(typed) is UnionType else typed)
        for name, kind in known.items() if len(known) == 1 else ():
            if get_origin(kind) is list and is_typeddict(get_args(kind)[0]):
                assert [fits(verb, row, get_args(kind)[0]) for row in reply[name]], verb


def fits(verb: str, told: dict[str, Any], typed: Any) -> dict[str, Any]:
    """The declared fields, once the answer has all of them but what is not required, and no other."""
    known = get_type_hints(typed, include_extras=True)
    required = {name for name, kind in known.items() if get_origin(kind) is not NotRequired}
    assert required <= set(told) <= set(known), (verb, told)
    return known
