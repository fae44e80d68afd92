"""A cap for one sweep: at most so many of it run at a time, whatever ends, is retried, or restarts."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.waiting import wait_until

import gpulease
from gpulease.errors import UsageError

BLOCK = "while ! [ -e go ]; do sleep 0.05; done"


def running(queue: QueueSite, ids: list[int]) -> list[int]:
    return [job["id"] for job in queue.jobs(ids=[[ids[0], ids[-1]]]) if job["state"] == "running"]


def test_a_sweep_runs_at_most_so_many_and_says_so(queue: QueueSite) -> None:
    words = ["--cwd", str(queue.folder), "--", "sh", "-c", f"echo {{x}}; {BLOCK}"]
    done = queue.run("add", "--sweep", "x=1:5", "--at-most", "1", *words)
    ids = [int(id) for id in done.stdout.split()]
    queue.until(ids[0], "running")
    other = queue.submit("true")
    assert queue.end(other)[0]["state"] == "complete"
    waiting = queue.job(ids[1])
    assert (waiting["why_waiting"], waiting["why_short"], waiting["at_most"]) == (
        "At most 1 of this sweep run at once.", "at most 1 at once", 1,
    )  # fmt: skip
    assert running(queue, ids) == ids[:1]
    assert "1 of its sweep at a time" in queue.run("show", str(ids[1])).stdout
    assert queue.run("edit", str(ids[4]), "--at-most", "2").returncode == 0
    wait_until(lambda: running(queue, ids) == ids[:2])
    queue.restart()
    wait_until(lambda: queue.job(ids[2])["why_waiting"] == "At most 2 of this sweep run at once.")
    assert running(queue, ids) == ids[:2]
    (queue.folder / "go").touch()
    assert {job["state"] for job in queue.end(*ids)} == {"complete"}


def test_retried_jobs_of_a_sweep_keep_its_cap(queue: QueueSite) -> None:
    ids = queue.submit_all([["sh", "-c", f"[ -e again ] || exit 1; {BLOCK}"]] * 3, at_most=1)
    queue.end(*ids)
    (queue.folder / "again").touch()
    queue.act("retry", *ids)
    wait_until(lambda: running(queue, ids))
    wait_until(lambda: queue.job(ids[2])["why_short"] == "at most 1 at once")
    assert len(running(queue, ids)) == 1
    queue.act("kill", *ids)
    queue.end(*ids)


def test_jobs_that_wait_become_a_sweep_by_edit_and_cease_to_be_one(queue: QueueSite) -> None:
    ids = queue.submit_all([["sh", "-c", BLOCK]] * 3, hold=True)
    assert queue.run("edit", f"{ids[0]}-{ids[2]}", "--at-most", "1").returncode == 0
    queue.act("resume", *ids)
    queue.until(ids[0], "running")
    wait_until(lambda: queue.job(ids[2])["why_short"] == "at most 1 at once")
    assert queue.run("edit", str(ids[2]), "--at-most", "none").returncode == 0
    wait_until(lambda: len(running(queue, ids)) > 1)
    assert queue.job(ids[2])["at_most"] is None
    queue.act("kill", *ids)
    queue.end(*ids)


@pytest.mark.usefixtures("inside")
def test_python_caps_a_sweep_and_what_is_no_cap_is_refused(queue: QueueSite) -> None:
    jobs = gpulease.sweep(["sh", "-c", "echo {x}"], x=[1, 2, 3], at_most=2)
    assert [job.info["at_most"] for job in jobs] == [2, 2, 2]
    gpulease.wait(*jobs)
    for value in (0, -1, True, "x", 1.5):
        with pytest.raises(UsageError, match="Invalid value for at_most"):
            gpulease.sweep(["echo", "{x}"], x=[1, 2], at_most=value)  # type: ignore[arg-type]
    refused = queue.run("add", "--at-most", "3", "--", "true")
    assert (refused.returncode, "--sweep or --file" in refused.stderr) == (2, True)


def test_slurms_way_to_write_it_is_understood(queue: QueueSite) -> None:
    done = queue.run("add", "--hold", "--sweep", "x=1:4%2", "--", "echo", "{x}")
    ids = [int(id) for id in done.stdout.split()]
    assert [queue.job(id)["at_most"] for id in ids] == [2, 2, 2, 2]
    twice = queue.run("add", "--hold", "--sweep", "x=1:4%2", "--at-most", "3", "--", "echo", "{x}")
    assert (twice.returncode, "both given" in twice.stderr) == (2, True)
    plain = queue.run("add", "--hold", "--sweep", "x=10%,20%5", "--", "echo", "{x}")
    assert [queue.job(int(id))["command"][1] for id in plain.stdout.split()] == ["10%", "20%5"]
