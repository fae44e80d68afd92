"""What clients are told is true and in order: pipelined questions, a broker that has just come, subscriptions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.queue_site import QueueSite, fresh_queue, inside, pick  # noqa: F401  # pytest finds the fixture here
from support.waiting import wait_for_end, wait_until

import gpulease
from gpulease.client.connection import Client
from gpulease.client.subscriptions import Subscription
from gpulease.errors import UsageError
from gpulease.model.job_selection import selection
from gpulease.protocol.wire import pack

pytestmark = pytest.mark.usefixtures("inside")


def test_answers_come_in_the_order_of_the_questions(queue: QueueSite) -> None:
    """Also where the first must wait until the devices have been looked at."""
    with queue.raw() as raw:
        verbs = ("status", "ping", "set", "ls")
        raw.socket.sendall(b"".join(pack({"v": 1, "do": verb}) for verb in verbs))
        answers = [raw.receive()["ok"] for _ in verbs]
    marks = ("line", "uptime", "parameters", "counts")
    assert [mark in answer for mark, answer in zip(marks, answers, strict=True)] == [True] * 4


def test_a_broker_that_has_just_come_does_not_say_that_no_device_matches(queue: QueueSite) -> None:
    first = queue.submit("sleep", "600", request={"gpus": 4})
    queue.until(first, "running")
    second = queue.submit("true")
    queue.restart()
    reply = queue.job(second)["why_waiting"]
    assert reply is not None
    assert "No device" not in reply


def test_a_run_whose_beginning_cannot_be_noted_waits_and_says_why(queue: QueueSite) -> None:
    folder = Path(queue.directory, "jobs", str(os.geteuid()))
    folder.mkdir(parents=True)
    (folder / "runs").touch()
    id = queue.submit("true")
    wait_until(lambda: "runs' cannot be written" in (queue.job(id)["why_waiting"] or ""))
    (folder / "runs").unlink()
    assert [(job["state"], job["tries"]) for job in queue.end(id)] == [("complete", 1)]


@pytest.mark.parametrize("select", [{"labels": "x"}, {"ids": []}, {"all": True, "users": "x"}, {"label": "\udcff"}])
def test_a_choice_that_is_not_understood_chooses_nobody(queue: QueueSite, select: dict[str, object]) -> None:
    id = queue.submit("true", hold=True)
    with pytest.raises(UsageError):
        queue.ask("kill", select=select)
    assert queue.job(id)["state"] == "held"


def test_a_label_that_is_no_text_is_refused(queue: QueueSite) -> None:
    with pytest.raises(UsageError, match="label"):
        queue.submit("true", label="\udcff")


def test_a_change_that_a_job_does_not_have_is_refused(queue: QueueSite) -> None:
    id = queue.submit("true", hold=True)
    with pytest.raises(UsageError, match="prioritee"):
        gpulease.edit(id, prioritee=3)


def test_a_thousand_jobs_are_one_range() -> None:
    assert selection([list(range(5, 1305))])["ids"] == [(5, 1304)]
    assert selection(["3,4"])["ids"] == [(3, 3), (4, 4)]


# -------------------------------------------------------------------- subscriptions


def test_a_subscriber_hears_of_a_job_from_its_beginning_to_its_end(queue: QueueSite) -> None:
    id = queue.shell("while ! [ -e go ]; do sleep 0.05; done", hold=True)
    seen: list[str] = []
    with Subscription("jobs", select=pick(id)) as reply:
        reply.receive(40)
        assert reply.open == 1
        queue.act("resume", id)
        while reply.open:
            changed = reply.receive(40)
            assert changed is not None
            seen.append(changed["jobs"][str(id)]["state"])
            if seen[-1] == "running":
                (queue.folder / "go").touch()
    assert seen[-1] == "complete"
    assert "running" in seen


def test_a_subscriber_hears_of_leases_and_of_the_line(queue: QueueSite) -> None:
    with Subscription("leases", "line") as reply:
        reply.receive(40)
        assert reply.rows == {"leases": {}, "line": {}}
        queue.run("get", "-n", "4", "--for", "1h")
        with queue.raw() as waiting:
            waiting.acquire()
            wait_until(lambda: reply.receive(0.1) is not None and reply.rows["line"] and reply.rows["leases"])
            (row,) = reply.rows["line"].values()
            assert "4" in row["why"]
        queue.run("release", "--mine")
        wait_until(lambda: reply.receive(0.1) is not None and reply.rows == {"leases": {}, "line": {}})


def test_a_subscription_goes_on_after_a_restart(queue: QueueSite) -> None:
    with Subscription("leases") as reply:
        reply.receive(40)
        queue.run("get", "--for", "1h")
        wait_until(lambda: reply.receive(0.1) is not None and reply.rows["leases"])
        queue.kill_broker()
        queue.ensure_broker()
        queue.run("release", "--mine")
        wait_until(lambda: reply.receive(0.1) is not None and reply.rows["leases"] == {})


def test_whoever_only_watches_does_not_start_a_broker_that_was_stopped(queue: QueueSite) -> None:
    with Subscription("leases", client=Client(start=False)) as reply:
        reply.receive(40)
        pid = queue.ask("ping")["pid"]
        queue.run("stop")
        with pytest.raises(ConnectionError):
            reply.receive(40)
    wait_for_end(pid)
    assert queue.broker_pid() is None


def test_a_subscriber_that_does_not_read_gets_a_fresh_snapshot_instead_of_what_it_missed(queue: QueueSite) -> None:
    queue.ask("pause", queue=True)
    queue.submit_all([["true"]] * 3000, hold=True)
    with queue.raw() as slow:
        slow.send("subscribe", topics=["jobs"])
        for _ in range(2):  # each is told in more than a hundred kilobytes; a socket holds two hundred
            queue.ask("resume", select={"state": "held"})
            queue.ask("kill", select={"state": "waiting"})
            queue.ask("retry", select={"state": "killed"})
            queue.ask("kill", select={"state": "waiting"})
            queue.ask("retry", select={"state": "killed"})
            queue.submit("true", hold=True)
        queue.ask("kill", select={"state": "held"})
        queue.ask("kill", select={"state": "waiting"})
        snapshots, reply = 0, {"open": -1}
        while snapshots < 2 or reply["open"]:
            ((kind, reply),) = slow.receive().items()
            snapshots += kind == "snapshot"
        assert snapshots >= 2
