"""`explain` of a request that nobody has made says when it would start, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.waiting import wait_until

import gpulease
from gpulease.errors import UsageError


def busy(queue: QueueSite, *times: str) -> None:
    """A job on one GPU for each of these declared times."""
    for time in times:
        assert queue.run("add", "--for", time, "--", "sleep", "1000").returncode == 0
    wait_until(lambda: queue.json("ls")["counts"].get("running") == len(times))


def foreseen(queue: QueueSite, *words: str) -> Any:
    return queue.json("explain", *words)


def test_it_would_start_now_or_in_its_turn(queue: QueueSite) -> None:
    reply = foreseen(queue, "-n", "2", "--count", "3")
    assert (reply["code"], reply["starts"], reply["load"], reply["gpus"]) == ("fits", [0.0, 0.0, None], 0.0, 4)
    busy(queue, "1h", "2h", "3h", "4h")
    reply = foreseen(queue, "-n", "1", "--for", "30m", "--count", "3")
    first, second, third = reply["starts"]
    assert (reply["code"], reply["possible"], reply["load"]) == ("busy", True, 1.0)
    assert 0 < first < second < third < 4 * 3600


def everything(queue: QueueSite) -> Any:
    jobs = [(job["id"], job["state"], job["devices"]) for job in queue.json("ls")["jobs"]]
    return jobs, queue.json("events"), [row["id"] for row in queue.status()["line"]]


def test_nothing_is_changed_by_asking(queue: QueueSite) -> None:
    busy(queue, "1h", "1h", "1h", "1h")
    queue.run("add", "--for", "1h", "--", "true")
    before = everything(queue)
    for words in (["-n", "1"], ["-n", "4", "--count", "64"], ["--mem", "6G"], ["-n", "9"]):
        foreseen(queue, *words)
    assert everything(queue) == before
    assert queue.json("explain", "5")["place"] == 1


def test_it_stands_behind_who_waits_already_unless_it_is_more_urgent(queue: QueueSite) -> None:
    busy(queue, "1h", "2h", "3h", "4h")
    queue.run("add", "--for", "10m", "--", "true")
    reply = foreseen(queue, "-n", "1")
    assert reply["place"] == 2
    assert reply["starts"][0] > foreseen(queue, "-n", "1", "--priority", "1")["starts"][0] > 0
    assert foreseen(queue, "-n", "1", "--priority", "1")["place"] == 1


def test_what_can_never_be_is_told_as_such(queue: QueueSite) -> None:
    reply = foreseen(queue, "-n", "5")
    assert (reply["possible"], reply["starts"]) == (False, [])
    assert "wants 5 devices" in reply["why"]
    assert foreseen(queue, "-n", "1", "--model", "H100")["possible"] is False


def test_a_paused_queue_counts_for_a_job(queue: QueueSite) -> None:
    queue.run("pause", "--queue")
    assert "paused" in foreseen(queue, "--job")["why"]
    assert foreseen(queue, "-n", "1")["code"] == "fits"


def test_bad_questions_are_refused(queue: QueueSite) -> None:
    for words in (["1", "-n", "2"], ["-n", "1", "--count", "65"], ["-n", "1", "--count", "0"], ["-n", "-1"]):
        done = queue.run("explain", *words)
        assert done.returncode == 2, (words, done)


def test_people_read_it_in_sentences(queue: QueueSite) -> None:
    assert queue.run("explain", "-n", "2").stdout == "It would start now.\n"
    busy(queue, "1h", "1h", "1h", "1h")
    reply = queue.run("explain", "-n", "1").stdout
    assert reply.startswith("It would be number 1 in the queue. ")
    assert "WHY NOT" in reply


@pytest.mark.usefixtures("inside")
def test_python_asks_the_same() -> None:
    assert gpulease.explain(gpus=2, count=2)["starts"] == [0.0, 0.0]
    with pytest.raises(UsageError):
        gpulease.explain(colour="red")
    with pytest.raises(UsageError):
        gpulease.explain(3, gpus=2)
