"""Ended jobs: which of them are forgotten, which are started again, and what is told about them."""

from __future__ import annotations

import json
import os

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixture here

import gpulease
from gpulease.errors import UsageError, WrongState


def ended(queue: QueueSite) -> dict[str, int]:
    """One job for each end but `lost`."""
    ids = {
        "complete": queue.submit("true"),
        "failed": queue.shell("exit 3"),
        "invalid": queue.submit("/no/such/command"),
        "killed": queue.submit("true", hold=True),
    }
    queue.act("kill", ids["killed"])
    assert [job["state"] for job in queue.end(*ids.values())] == list(ids)
    return ids


def left(queue: QueueSite) -> list[str]:
    return sorted(job["state"] for job in queue.jobs())


def test_clean_keeps_what_failed_or_was_killed_until_it_is_named(queue: QueueSite) -> None:
    ended(queue)
    done = queue.run("clean")
    assert done.stdout == "forgot 1,3\n"
    assert "2 that failed" in done.stderr
    assert left(queue) == ["failed", "killed"]
    assert queue.run("clean", "runtime_error").stdout == "forgot 2\n"  # gpulimit's word
    assert queue.run("clean", "kill").stdout == "forgot 4\n"
    assert left(queue) == []


@pytest.mark.parametrize("words", [["--all"], ["all"], ["CMD_ERROR", "complete", "failed", "killed"], ["1-4"]])
def test_clean_forgets_all_that_is_named(queue: QueueSite, words: list[str]) -> None:
    ended(queue)
    assert queue.run("clean", *words).stdout == "forgot 1-4\n"


def test_several_states_choose_jobs_for_any_verb(queue: QueueSite) -> None:
    ended(queue)
    assert [job["state"] for job in queue.json("ls", "--state", "failed,killed")["jobs"]] == ["failed", "killed"]
    assert queue.run("rm", "--state", "failed,killed").stdout == "removed 2,4\n"
    refused = queue.run("clean", "failed", "1")
    assert (refused.returncode, "together with ids" in refused.stderr) == (2, True)
    assert queue.run("ls", "--state", "failed,lots").returncode == 2


def test_start_runs_a_killed_or_failed_job_again_and_counts_on(queue: QueueSite) -> None:
    ids = ended(queue)
    assert queue.run("start", f"{ids['failed']},{ids['killed']}").returncode == 0
    again = queue.end(ids["failed"], ids["killed"])
    assert [(job["state"], job["tries"]) for job in again] == [("failed", 2), ("complete", 1)]
    for state in ("complete", "invalid"):
        with pytest.raises(WrongState, match="cannot be started"):
            queue.act("start", ids[state])


def test_start_all_means_those_that_wait(queue: QueueSite) -> None:
    ids = ended(queue)
    held = queue.submit("true", hold=True)
    assert queue.ask("start", select={"all": True})["ids"] == [held]
    queue.end(held)
    assert queue.job(ids["failed"])["tries"] == 1


def test_gpulimits_words_for_no_limit_and_for_move(queue: QueueSite) -> None:
    assert queue.run("set", "MAX_RUNNING_TASKS", "3").returncode == 0
    assert queue.run("set", "MAX_RUNNING_TASKS", "-1").returncode == 0
    held = [queue.submit("true", request={"not_before": 4e9}) for _ in range(2)]
    assert queue.run("mv", str(held[1])).stdout == f"moved {held[1]}\n"
    assert [job["id"] for job in queue.jobs()] == held[::-1]


def test_log_main_tells_what_was_added_started_and_ended(queue: QueueSite) -> None:
    ids = queue.submit_all([["true"], ["sh", "-c", "exit 3"]])
    queue.end(*ids)
    lines = [line.split(" ", 2)[2] for line in queue.run("log", "main").stdout.splitlines()]
    assert lines[0].startswith("added J1 (")
    assert lines[0].endswith(": job 1-2")
    assert sorted(line.split()[0] for line in lines) == ["added", "ended", "ended", "granted", "granted"]
    assert any("ended J2" in line and "job 2 is failed: exit code 3" in line for line in lines)
    granted = next(event for event in queue.json("events")["events"] if event["what"] == "granted")
    assert (granted["kind"], granted["id"]) == ("job", "J1")
    assert granted["waited"] >= 0
    assert len(queue.run("log", "main", "--tail", "2").stdout.splitlines()) == 2
    assert queue.run("log", "main", "-f").returncode == 2


def test_gpulimits_states_are_understood_everywhere(queue: QueueSite) -> None:
    ended(queue)
    assert [
        job["state"] for job in json.loads(queue.run("ls", "--state", "runtime_error", "--json").stdout)["jobs"]
    ] == ["failed"]
    assert queue.run("retry", "--state", "CMD_ERROR,kill").stdout == "queued again 3-4\n"


def test_debug_of_one_that_failed_says_that_its_command_did(queue: QueueSite) -> None:
    """It said that nothing is wrong with it."""
    id = queue.shell("echo no such file >&2; exit 2")
    queue.end(id)
    said = queue.run("debug", str(id)).stdout
    assert f"job {id} is failed: it did start, and its command failed (exit code 2)" in said
    assert "no such file" in said


def test_one_that_failed_is_queued_again_with_another_request(queue: QueueSite) -> None:
    """After it ran out of memory it could only be retried on the same card."""
    id = queue.shell("echo on $GPULEASE_DEVICES; exit 3", request={"devices": ["0"]}, time_limit=60)
    queue.end(id)
    edited = queue.run("edit", str(id), "--min-memory", "40G")
    assert edited.returncode == 1
    assert "gpulease retry ID --min-memory 40G" in edited.stderr
    done = queue.run("retry", str(id), "--devices", "2", "--min-memory", "40G", "--time-limit", "none")
    assert done.stdout == f"queued again {id}\n", done.stderr
    (job,) = queue.end(id)
    assert (job["devices"], job["request"]["min_memory"], job["time_limit"]) == (["2"], 40 << 30, None)
    assert queue.output(id).split() == ["on", "0", "on", "2"]
    never = queue.run("retry", str(id), "--min-memory", "900G")
    assert never.returncode != 0
    assert queue.job(id)["state"] == "failed"


@pytest.mark.usefixtures("inside")
def test_in_python_too(queue: QueueSite) -> None:
    id = queue.shell("exit 3", request={"devices": ["0"]})
    queue.end(id)
    assert gpulease.retry(id, devices="3", new_env=True)["ids"] == [id]
    assert queue.end(id)[0]["devices"] == ["3"]
    with pytest.raises(UsageError, match="takes no color"):
        gpulease.retry(id, color="red")


def test_jobs_are_named_by_the_number_of_a_user_whose_account_is_gone(queue: QueueSite) -> None:
    id = queue.submit("true", hold=True)
    assert "give its number" in queue.run("kill", "--user", "nobody-of-this-name").stderr
    assert "There is no user" not in queue.run("ls", "--user", "4123456789").stderr
    queue.ask("kill", select={"user": str(os.getuid())})
    assert queue.job(id)["state"] == "killed"
