"""A job that was told to end is ending until all of it is gone; and how one ended is told the same everywhere."""

from __future__ import annotations

import os
import signal

import pytest
from support.me import USER
from support.queue_site import (  # noqa: F401  # pytest finds the fixtures here
    STUBBORN,
    QueueSite,
    fresh_queue,
    inside,
    python,
)

import gpulease

DEAF = STUBBORN + "import os; print('pid', os.getpid(), flush=True); time.sleep(600)"


def deaf(queue: QueueSite) -> tuple[int, int]:
    """A job that ignores TERM, with hours of grace; and the process that has to be killed to end it."""
    queue.ask("set", name="grace", value="3600")
    id = queue.submit(*python(DEAF))
    return id, int(queue.said(id, "pid ").split()[2])


def test_it_is_ending_until_it_has_ended_wherever_it_is_shown(queue: QueueSite) -> None:
    id, pid = deaf(queue)
    assert queue.run("kill", str(id)).stdout == f"ending {id}\n"
    job = queue.job(id)
    assert (job["state"], job["ending"], job["removing"]) == ("running", f"killed by {USER}", False)
    (line,) = (line for line in queue.run("ls").stdout.splitlines() if line.startswith(str(id)))
    assert line.split()[1] == "ending"
    assert line.endswith(f"[killed by {USER}]")
    assert f"ending: killed by {USER}" in queue.run("show", str(id)).stdout
    assert queue.status()["leases"][0]["ending"] == f"killed by {USER}"
    assert f", ending: killed by {USER}" in queue.run("status").stdout
    os.kill(pid, signal.SIGKILL)
    (job,) = queue.end(id)
    assert (job["state"], job["ending"], job["why"]) == ("killed", None, f"killed by {USER}")


def test_rm_says_removing_and_wait_goes_on_until_it_is_gone(queue: QueueSite) -> None:
    id, pid = deaf(queue)
    waiting = queue.start("rm", str(id), "--wait")
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == f"removing {id}\n"
    assert f"\n{id}   removing" in queue.run("ls").stdout
    os.kill(pid, signal.SIGKILL)
    assert waiting.communicate(timeout=60)[0] == f"removed {id}\n"
    assert waiting.returncode == 0
    assert queue.jobs() == []


def test_ctrl_c_leaves_the_waiting_and_not_the_order(queue: QueueSite) -> None:
    id, pid = deaf(queue)
    waiting = queue.start("kill", str(id), "--wait")
    assert waiting.stdout is not None
    waiting.stdout.readline()
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=60) == ("", "")
    assert queue.job(id)["ending"] == f"killed by {USER}"
    os.kill(pid, signal.SIGKILL)
    assert queue.end(id)[0]["state"] == "killed"


def test_python_waits_too(queue: QueueSite, inside: None) -> None:  # noqa: F811
    id = queue.submit("sleep", "600")
    queue.until(id, "running")
    assert gpulease.kill(id, wait=True)["ending"] == []
    assert queue.job(id)["state"] == "killed"
    assert gpulease.rm(id)["ids"] == [id]


def test_what_has_ended_does_not_keep_the_rest_of_a_label_from_being_killed(queue: QueueSite) -> None:
    queue.end(queue.submit("true", label="sweep"))
    queue.end(queue.submit("false", label="sweep"))
    queue.submit("true", label="sweep", hold=True)
    first, second = (queue.run("kill", "--label", "sweep") for _ in range(2))
    assert (first.returncode, first.stdout) == (0, "killed 3\n")
    assert first.stderr == "gpulease: left as they are: 1 complete; 2 failed\n"
    assert (second.returncode, second.stdout) == (0, "nothing to do\n")
    assert second.stderr == "gpulease: left as they are: 1 complete; 2 failed; 3 killed\n"
    none = queue.run("pause", "--label", "sweep")
    assert none.returncode == 1
    assert "None of these jobs can be paused: 1 complete; 2 failed; 3 killed." in none.stderr


def test_an_end_by_a_signal_is_told_as_such_everywhere(queue: QueueSite) -> None:
    id = queue.shell("kill -SEGV $$")
    queue.end(id)
    reply = "signal 11 (SIGSEGV)"
    assert queue.run("ls").stdout.rstrip().endswith(f"[{reply}]")
    assert f"failed, {reply}" in queue.run("show", str(id)).stdout
    assert f"is failed: {reply}" in queue.run("events").stdout
    assert queue.job(id)["exit_code"] == 128 + 11


@pytest.mark.parametrize("again", ["retry", "start"])
def test_a_job_that_waits_again_shows_no_gpu_of_its_last_run(queue: QueueSite, again: str) -> None:
    id = queue.submit("false")
    assert queue.end(id)[0]["devices"] == ["0"]
    queue.submit("sleep", "600", request={"gpus": 4})
    queue.until(id + 1, "running")
    queue.act(again, id)
    job = queue.job(id)
    assert (job["state"], job["devices"], job["started"]) == ("waiting", [], None)
    assert "GPUs " not in queue.run("show", str(id)).stdout
    assert queue.run("ls", str(id)).stdout.splitlines()[-1].split()[3] == "(1)"
