"""A job runs as it was submitted: its environment, folder, devices and log; and its end is told truly."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.queue_site import QueueSite, fresh_queue, python  # noqa: F401  # pytest finds the fixture here
from support.site import devices_of
from support.waiting import wait_until

SHOW = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"


def test_add_prints_the_id_only_and_the_job_gets_environment_folder_and_devices(queue: QueueSite) -> None:
    done = queue.run(
        "add", "-n", "2", "--env", "MORE=1", "--cwd", str(queue.folder), "--", sys.executable, "-c", SHOW, MINE="mine"
    )
    assert (done.stdout, done.stderr) == ("1\n", "")
    (job,) = queue.end(1)
    environ, folder = json.loads(queue.output(1))
    uuids = {str(device["index"]): device["uuid"] for device in queue.status()["devices"]}
    assert (environ["MINE"], environ["MORE"], folder) == ("mine", "1", str(queue.folder))
    assert (environ["GPULEASE_JOB"], environ["GPULEASE_LEASE"]) == ("1", "J1")
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["CUDA_VISIBLE_DEVICES"] == ",".join(uuids[i] for i in environ["GPULEASE_DEVICES"].split(","))
    assert (job["state"], job["exit_code"], job["devices"]) == ("complete", 0, environ["GPULEASE_DEVICES"].split(","))


@pytest.mark.parametrize("code", [1, 3, 122, 123, 124, 125, 126, 127, 255])
def test_a_command_that_began_may_end_with_any_code(queue: QueueSite, code: int) -> None:
    (job,) = queue.end(queue.shell(f"exit {code}"))
    assert (job["state"], job["exit_code"], job["why"]) == ("failed", code, None)


def test_a_signal_is_told_as_such(queue: QueueSite) -> None:
    (job,) = queue.end(queue.shell("kill -SEGV $$"))
    assert (job["state"], job["exit_code"], job["signal"]) == ("failed", 128 + signal.SIGSEGV, signal.SIGSEGV)


def test_what_cannot_start_is_invalid_with_the_reason(queue: QueueSite) -> None:
    gone = queue.folder / "gone"
    gone.mkdir()
    plain = queue.folder / "plain"
    plain.write_text("no program")
    ids = [
        queue.submit("no-such-command"),
        queue.submit("./plain"),
        queue.submit("true", cwd=str(gone), hold=True),
        queue.submit("true", log=str(gone / "log"), hold=True),
    ]
    gone.rmdir()
    queue.act("resume", ids[2], ids[3])
    found = queue.end(*ids)
    assert [job["state"] for job in found] == ["invalid"] * 4
    for job, said in zip(found, ["does not exist", "may not be run", "folder", "log"], strict=True):
        assert said in job["why"]
    debug = queue.run("debug", str(ids[0]))
    assert debug.returncode == 0
    assert "the command 'no-such-command' does not exist" in debug.stdout
    assert "PATH" in debug.stdout


@pytest.mark.parametrize("words", [["cd", "/"], ["exit", "0"], ["exec", "true"], [".", "./file"], ["eval", "true"]])
def test_what_only_a_shell_knows_is_no_command(queue: QueueSite, words: list[str]) -> None:
    (job,) = queue.end(queue.submit(*words))
    assert (job["state"], "does not exist" in job["why"]) == ("invalid", True)


def test_a_program_that_a_shell_knows_too_is_the_program(queue: QueueSite) -> None:
    id = queue.submit("printf", "--version")
    assert queue.end(id)[0]["state"] == "complete"
    assert "coreutils" in queue.output(id)


def test_the_log_goes_where_it_was_asked_to_and_both_streams_are_in_it(queue: QueueSite) -> None:
    logs = queue.folder / "logs"
    logs.mkdir()
    queue.run("add", "--log", f"{logs}/one", "--", "sh", "-c", "echo out; echo err >&2")
    queue.run("add", "--logpath", f"{logs}", "--", "echo", "two")
    queue.end(1, 2)
    assert (logs / "one").read_text() == "out\nerr\n"
    assert (logs / "2.log").read_text() == "two\n"


def test_show_has_times_tries_devices_and_the_last_lines(queue: QueueSite) -> None:
    id = queue.shell("seq 20; exit 4", name="counting", label="x", note="a note")
    queue.end(id)
    shown = queue.run("show", str(id)).stdout
    for text in ("failed, exit code 4", "counting", "a note", "started", "ended", "1 of 1", "GPUs", "\n20"):
        assert text in shown, text
    assert "\n10\n" not in shown
    job = queue.json("show", str(id))["jobs"][0]
    assert job["output"] == [str(number) for number in range(11, 21)]
    assert job["added"] <= job["started"] <= job["ended"]
    assert not {"environment", "history", "run"} & set(job)


def test_peak_memory_is_what_was_seen(queue: QueueSite) -> None:
    queue.ask("set", name="polling", value="0.1")
    words = queue.words("simulate", "use", "0", "--memory", "8G", "--", "sh", "-c", "echo there; read line < fifo")
    os.mkfifo(queue.folder / "fifo")
    id = queue.submit(*words, request={"devices": ["0"]})
    queue.said(id, "there")
    wait_until(lambda: queue.job(id)["peak_memory"])
    (queue.folder / "fifo").write_text("go on\n")
    assert queue.end(id)[0]["peak_memory"] == 8 << 30


def test_the_environment_is_for_the_submitter_only_and_only_on_request(queue: QueueSite) -> None:
    id = queue.submit("true", environment={**queue.environ, "PRIVATE": "hunter2"})
    queue.end(id)
    assert "hunter2" not in queue.run("show", str(id)).stdout + queue.run("ls", "--json").stdout
    assert "PRIVATE=hunter2" in queue.run("show", str(id), "--env").stdout
    for path in Path(queue.directory).glob("state.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    queue.act("rm", id)
    queue.run("stop")
    with closing(sqlite3.connect(f"{queue.directory}/state.db")) as database:
        assert database.execute("SELECT count(*) FROM environments").fetchone() == (0,)


def test_a_job_does_not_get_the_brokers_limit_of_open_files(queue: QueueSite) -> None:
    mine = queue.popen(["sh", "-c", "ulimit -S -n"]).communicate()[0]
    id = queue.shell("ulimit -S -n")
    queue.end(id)
    assert queue.output(id) == mine


def test_a_broker_started_by_a_job_is_not_a_part_of_it(queue: QueueSite) -> None:
    program = (
        "import time; from gpulease.client.connection import Client; Client(); print('done', flush=True); "
        "time.sleep(99)"
    )
    script = "read line < fifo; exec " + " ".join(["$0", "-c", '"$1"'])
    os.mkfifo(queue.folder / "fifo")
    id = queue.submit("sh", "-c", script, sys.executable, program)
    queue.until(id, "running")
    queue.kill_broker()
    (queue.folder / "fifo").write_text("go on\n")
    wait_until(queue.broker_pid)
    queue.said(id, "done")
    broker = queue.broker_pid()
    queue.ask("set", name="grace", value="0.1")
    queue.act("kill", id)
    assert queue.end(id)[0]["state"] == "killed"
    assert queue.broker_pid() == broker
    wait_until(lambda: devices_of(queue, "free") == [0, 1, 2, 3])


def test_jobs_share_a_device_by_memory(queue: QueueSite) -> None:
    os.mkfifo(queue.folder / "fifo")
    ids = [queue.shell("read line < fifo", request={"memory": 30 << 30, "devices": ["1"]}) for _ in range(3)]
    wait_until(lambda: [queue.job(id)["state"] for id in ids] == ["running", "running", "waiting"])
    assert devices_of(queue, "shared") == [1]
