"""What a job comes after: ids, ranges, `last`, `all` and labels, as they are when it is queued."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.waiting import wait_until

import gpulease
from gpulease.errors import NotFound, UsageError, WrongState

BLOCK = "while ! [ -e go ]; do sleep 0.05; done"


def added(queue: QueueSite, *words: str) -> list[int]:
    done = queue.run("add", *words)
    assert done.returncode == 0, done.stderr
    return [int(id) for id in done.stdout.split()]


def refusal(queue: QueueSite, *words: str) -> str:
    done = queue.run("add", *words, "--", "true")
    assert done.returncode in (1, 2), done
    return done.stderr


def test_add_takes_ranges_lists_and_words_as_every_verb_does(queue: QueueSite) -> None:
    first = added(queue, "--hold", "--sweep", "x=1:4", "--", "true", "{x}")
    killed = queue.submit("true", hold=True)
    queue.act("kill", killed)
    wanted = {"1-3": first[:3], "1,3-4": [1, 3, 4], "all": first, "J2": [2]}
    for form, ids in wanted.items():
        (id,) = added(queue, "--hold", "--after", form, "--", "true")
        assert queue.job(id)["after"] == ids
        queue.act("rm", id)
    (before,) = added(queue, "--hold", "--after", "1", "--", "true")
    (last,) = added(queue, "--after", "last", "--", "true")
    assert queue.job(last)["after"] == [before]
    assert "jobs 90-99" in refusal(queue, "--after", "90-99")
    assert f"Job {killed} is killed" in refusal(queue, "--after", f"1-{killed}")
    assert "together with other jobs" in refusal(queue, "--after", "1,last")
    assert added(queue, "--after-any", f"1-{killed}", "--", "true")
    assert queue.run("edit", str(last), "--after", "1-2,4").returncode == 0
    assert queue.job(last)["after"] == [1, 2, 4]


def test_a_job_that_comes_after_many_starts_when_the_last_of_them_is_complete(queue: QueueSite) -> None:
    first = queue.submit_all([["sh", "-c", BLOCK]] * 7)
    second = queue.submit_all([["true"]] * 3, after=[[1, 7]])
    assert queue.job(second[0])["why_waiting"] == "It comes after 7 jobs: 1, 2, 3, 4, 5 and others."
    queue.act("rm", first[1])
    assert {job["state"] for job in queue.end(*second)} == {"killed"}
    third = queue.submit_all([["true"]] * 3, after="all")
    (queue.folder / "go").touch()
    assert {job["state"] for job in queue.end(*third)} == {"complete"}
    ends = [queue.job(id)["ended"] for id in first if id != first[1]]
    assert max(ends) <= min(queue.job(id)["started"] for id in third)


def test_a_label_is_those_jobs_of_it_that_are_not_over(queue: QueueSite) -> None:
    first = queue.submit_all([["true"]] * 3, label="sweep", hold=True)
    queue.submit("true", label="other", hold=True)
    (after,) = added(queue, "--after-label", "sweep", "--", "true")
    assert queue.job(after)["after"] == first
    queue.act("resume", *first)
    assert queue.end(after)[0]["state"] == "complete"
    (at_once,) = added(queue, "--after-label", "sweep", "--", "true")
    assert queue.end(at_once)[0]["after"] == []
    assert "no job with the label 'swep'" in refusal(queue, "--after-label", "swep")


def test_a_label_of_which_none_ended_well_needs_after_any(queue: QueueSite) -> None:
    queue.act("kill", queue.submit("true", label="bad", hold=True))
    assert "none is complete" in refusal(queue, "--after-label", "bad")
    assert "both given" in refusal(queue, "--after-label", "bad", "--after-any-label", "bad")
    (id,) = added(queue, "--after-any-label", "bad", "--", "true")
    assert queue.end(id)[0]["state"] == "complete"


@pytest.mark.usefixtures("inside")
def test_python_takes_the_same(queue: QueueSite) -> None:
    first = [gpulease.submit(["true"], hold=True, label="a") for _ in range(3)]
    assert gpulease.submit(["true"], after="1-2").info["after"] == [1, 2]
    assert gpulease.submit(["true"], after=[first[0], "2-3"]).info["after"] == [1, 2, 3]
    assert gpulease.submit(["true"], after_label="a").info["after"] == [1, 2, 3]
    job = gpulease.submit(["true"], after_label="a", after_any=True)
    assert (job.info["after"], job.info["after_any"]) == ([1, 2, 3], True)
    gpulease.edit(job, after_label="a")
    assert (job.info["after"], job.info["after_any"]) == ([1, 2, 3], False)
    with pytest.raises(NotFound, match="no job with the label"):
        gpulease.submit(["true"], after_label="b")
    with pytest.raises(UsageError, match="after_label is ''"):
        gpulease.submit(["true"], after_label="")
    gpulease.kill(*first)
    with pytest.raises(WrongState):
        gpulease.submit(["true"], after_label="a")


def test_one_that_ended_and_is_run_again_is_not_waited_for_twice(queue: QueueSite) -> None:
    """Also by a broker that was started meanwhile, and only reads what is kept."""
    first = queue.submit("true")
    queue.end(first)
    second = queue.submit("true", hold=True)
    again = queue.shell(f"[ -e again ] && {{ {BLOCK}; }}; true")
    third = queue.submit("true", after=[first, second, again])
    queue.end(again)
    (queue.folder / "again").touch()
    queue.act("retry", again)
    queue.until(again, "running")
    queue.restart()
    wait_until(lambda: queue.job(third)["why_waiting"] == f"It comes after job {second}.")
    queue.act("resume", second)
    assert queue.end(third)[0]["state"] == "complete"
    (queue.folder / "go").touch()
    queue.end(again)


@pytest.mark.parametrize("again", ["retry", "start"])
def test_one_that_comes_after_a_failed_job_runs_again_only_with_that(queue: QueueSite, again: str) -> None:
    first = queue.shell("[ -e go ]")
    second = queue.submit("true", after=[first])
    third = queue.submit("true", after=[second])
    assert [job["state"] for job in queue.end(first, second, third)] == ["failed", "killed", "killed"]
    done = queue.run(again, str(second))
    assert done.returncode == 1
    assert f"Job {second} is to come after failed job {first}" in done.stderr
    assert "Retry the jobs that they come after too" in done.stderr
    assert f"{second} to come after failed job {first}" in queue.run(again, f"{second},{third}").stderr
    assert queue.job(second)["state"] == queue.job(third)["state"] == "killed"
    (queue.folder / "go").touch()
    queue.act(again, first, second, third)
    ends = queue.end(first, second, third)
    assert [job["state"] for job in ends] == ["complete"] * 3
    assert queue.job(first)["ended"] <= queue.job(second)["started"]


def test_what_comes_after_any_end_runs_again_by_itself(queue: QueueSite) -> None:
    first = queue.submit("false")
    second = queue.shell("[ -e go ]", after=[first], after_any=True)
    assert queue.end(second)[0]["state"] == "failed"
    (queue.folder / "go").touch()
    queue.act("retry", second)
    assert queue.end(second)[0]["state"] == "complete"
