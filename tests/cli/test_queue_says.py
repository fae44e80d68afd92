"""What the queue's commands say: nothing that misleads, and nothing that drives a terminal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.queue_site import (  # noqa: F401  # pytest finds the fixtures here
    STUBBORN,
    QueueSite,
    fresh_queue,
    inside,
    python,
)
from support.waiting import wait_until

import gpulease
from gpulease.cli.parsing import say
from gpulease.errors import UsageError


@pytest.mark.parametrize("verb", ["show", "log"])
def test_ids_that_are_nobodys_are_named(queue: QueueSite, verb: str) -> None:
    id = queue.submit("echo", "here")
    queue.end(id)
    done = queue.run(verb, f"{id},998,999")
    assert "here" in done.stdout
    assert "not there, or not yours: job 998-999" in done.stderr
    assert done.returncode == 1
    assert queue.run(verb, str(id)).returncode == 0


def test_start_says_why_a_job_waits_all_the_same(queue: QueueSite) -> None:
    queue.until(queue.submit("sleep", "600", request={"gpus": 4}), "running")
    id = queue.submit("true")
    done = queue.run("start", str(id))
    assert done.stdout == f"next to start: {id}\n"
    assert f"job {id} waits: " in done.stderr


def test_stop_tells_jobs_that_are_being_ended_from_those_that_go_on(queue: QueueSite) -> None:
    deaf = queue.submit(*python(STUBBORN + "time.sleep(600)"))
    queue.said(deaf, "deaf")
    queue.until(queue.submit("sleep", "600"), "running")
    queue.act("kill", deaf)
    assert queue.run("stop").stdout == "broker stopped; running jobs go on: 1; jobs that are being ended: 1\n"


def test_what_can_never_be_granted_is_refused_by_edit_before_the_first_sample_too(queue: QueueSite) -> None:
    queue.until(queue.submit("sleep", "600", request={"gpus": 4}), "running")
    id = queue.submit("true")
    queue.restart()
    done = queue.run("edit", str(id), "-n", "98")
    assert done.returncode == 1
    assert "98 devices" in done.stderr


def test_events_name_devices_by_index_before_the_first_sample_too(queue: QueueSite) -> None:
    """Of a lease that ended while no broker ran."""
    holder = queue.holder("--devices", "2")
    queue.kill_broker()
    holder.kill()
    holder.wait()
    ended = wait_until(lambda: [event for event in queue.json("events")["events"] if event["what"] == "ended"])
    assert ended[-1]["devices"] == ["2"]


@pytest.mark.usefixtures("inside")
def test_a_parameter_may_be_a_number_and_a_place_must_be_one() -> None:
    assert gpulease.set("grace", 5)[0]["value"] == "5s"
    assert gpulease.set("keep-memory", 0.25)[0]["value"] == "0.25"
    assert gpulease.set("hide-commands", True)[0]["value"] == "on"
    with pytest.raises(UsageError, match="The place is 'x'"):
        gpulease.move(1, "x")  # type: ignore[arg-type]


def test_no_control_character_reaches_the_terminal(queue: QueueSite, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(queue.folder, "a\x1b[2Jb")
    folder.mkdir()
    id = queue.submit("sh", "-c", "printf '\\033[2Jdone\\n'; exit 3 # \x1b[2J", cwd=str(folder), note="\x1b[2J")
    queue.end(id)
    for verb in ("debug", "show", "ls"):
        done = queue.run(verb, str(id))
        assert done.returncode == 0
        assert "\x1b" not in done.stdout + done.stderr, verb
    say("released L1\x1b[2J\r: GPU 0")
    assert capsys.readouterr().out == "released L1 [2J : GPU 0\n"


def test_a_log_that_is_no_ordinary_file_is_not_even_opened(queue: QueueSite) -> None:
    """To open some devices is to use them; a FIFO would have whoever looks wait."""
    fifo = Path(queue.folder, "fifo")
    os.mkfifo(fifo)
    id = queue.submit("true", log=str(fifo))
    assert queue.end(id)[0]["state"] == "invalid"  # nobody reads the FIFO
    assert "not a regular file" in queue.run("log", str(id)).stderr
    assert queue.run("show", str(id)).returncode == 0
