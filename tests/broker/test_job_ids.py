"""Ids as `add` prints them are taken wherever ids are; to choose no job by a state is no error."""

from __future__ import annotations

import json

from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here


def said(queue: QueueSite, *words: str, code: int = 0) -> str:
    done = queue.run(*words)
    assert done.returncode == code, done
    return done.stdout or done.stderr


def test_what_add_printed_is_a_list_of_ids(queue: QueueSite) -> None:
    ids = said(queue, "add", "--hold", "--sweep", "x=1:3", "--", "true", "{x}")
    said(queue, "add", "--hold", "--after", ids, "--", "true")
    said(queue, "add", "--hold", "--after", "1 2", "--after", "4", "--", "true")
    assert [queue.job(id)["after"] for id in (4, 5)] == [[1, 2, 3], [1, 2, 4]]
    said(queue, "edit", "5", "--after", "3", "--after", "1\n2")
    assert sorted(queue.job(5)["after"]) == [1, 2, 3]
    said(queue, "edit", "5", "--after", "none")
    assert queue.job(5)["after"] == []
    assert said(queue, "kill", ids) == "killed 1-3\n"


def test_no_job_in_a_state_is_an_empty_list_and_nothing_to_do(queue: QueueSite) -> None:
    queue.submit("true", label="there", hold=True)
    for words in (["--state", "failed"], ["--label", "nobody"], ["--label", "there", "--state", "lost"]):
        assert json.loads(said(queue, "ls", *words, "--json"))["jobs"] == []
    assert "No jobs match." in said(queue, "ls", "--state", "failed")
    for verb in ("retry", "kill", "wait", "rm", "resume", "start", "pause", "clean"):
        assert said(queue, verb, "--state", "failed") == "nothing to do\n", verb
        assert said(queue, verb, "--state", "failed", "--label", "there") == "nothing to do\n", verb
    assert "label 'nobody'" in said(queue, "wait", "--label", "nobody", code=1)
    assert "No such job" in said(queue, "ls", "99", code=1)
    assert "No such job" in said(queue, "log", "--state", "failed", code=1)


def test_a_placeholder_that_no_sweep_fills_in_is_told(queue: QueueSite) -> None:
    done = queue.run("add", "--hold", "--", "true", "--lr={lr}")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "the command gets {lr} as it is: no --sweep has values for it" in done.stderr
