"""Jobs outlive the broker: none is lost, none runs twice, none on a device of another."""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from support.queue_site import QueueSite, alive, fresh_queue  # noqa: F401  # pytest finds the fixture here
from support.site import devices_of
from support.waiting import wait_until


def go(queue: QueueSite, name: str) -> None:
    (queue.folder / name).touch()


def test_a_running_job_goes_on_into_the_same_log_and_its_end_is_known(queue: QueueSite) -> None:
    id = queue.shell("echo one; while ! [ -e go ]; do sleep 0.05; done; echo two; exit 3")
    queue.said(id, "one")
    pid = queue.until(id, "running")["pid"]
    queue.restart()
    job = queue.job(id)
    assert (job["state"], job["tries"]) == ("running", 1)
    wait_until(lambda: queue.job(id)["pid"] == pid)
    assert len(devices_of(queue, "leased")) == 1
    go(queue, "go")
    (job,) = queue.end(id)
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert queue.output(id) == "one\ntwo\n"
    wait_until(lambda: devices_of(queue, "free") == [0, 1, 2, 3])


def test_exit_codes_of_those_that_ended_meanwhile_are_learned(queue: QueueSite) -> None:
    script = "while ! [ -e go ]; do sleep 0.05; done; exit "
    ids = [queue.shell(script + str(code)) for code in (0, 5, 125)]
    invalid = queue.shell("echo begun; while ! [ -e go ]; do sleep 0.05; done; kill -9 $$")
    for id in (*ids, invalid):
        queue.until(id, "running")
    pids = [queue.job(id)["pid"] for id in (*ids, invalid)]
    queue.kill_broker()
    go(queue, "go")
    wait_until(lambda: not any(map(alive, pids)))
    queue.ensure_broker()
    found = queue.end(*ids, invalid)
    assert [job["exit_code"] for job in found] == [0, 5, 125, 137]
    assert [job["state"] for job in found] == ["complete", "failed", "failed", "failed"]


def test_a_job_whose_shell_was_killed_while_no_broker_ran_is_lost_and_takes_all_with_it(queue: QueueSite) -> None:
    id = queue.shell("echo $$; exec sleep 600")
    pid = int(queue.said(id, "\n"))
    shell = queue.until(id, "running")["pid"]
    queue.kill_broker()
    os.kill(shell, 9)
    queue.ensure_broker()
    (job,) = queue.end(id)
    assert job["state"] == "lost"
    assert not alive(pid)


def edit_state(queue: QueueSite, change: str, *values: object) -> None:
    """By hand, while no broker runs."""
    with closing(sqlite3.connect(f"{queue.directory}/state.db")) as database, database:
        database.execute(change, values)


def test_after_a_reboot_what_ran_is_lost_and_with_retry_runs_again(queue: QueueSite) -> None:
    lost = queue.submit("sleep", "600")
    again = queue.shell("[ -e second ] && exit 0; touch second; sleep 600", retry=1)
    behind = queue.submit("true", after=[lost], after_any=True)
    pids = [queue.until(id, "running")["pid"] for id in (lost, again)]
    wait_until((queue.folder / "second").exists)
    queue.run("stop")
    for pid in pids:
        os.killpg(pid, 9)
    edit_state(queue, "UPDATE leases SET body = json_set(body, '$.owner.boot_id', 'another')")
    queue.ensure_broker()
    found = queue.end(lost, again, behind)
    assert [(job["state"], job["tries"]) for job in found] == [("lost", 1), ("complete", 2), ("complete", 1)]
    assert "rebooted" in found[0]["why"]


def test_a_broker_killed_before_it_started_anything_starts_it_now_and_counts_one_try(queue: QueueSite) -> None:
    id = queue.submit("true", hold=True)
    queue.run("stop")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    changes = "'$.state', 'running', '$.tries', 1, '$.run', 1"
    edit_state(queue, f"UPDATE jobs SET state = 'running', body = json_set(body, {changes})")
    owner = f'{{"uid": 0, "user": "root", "host": "x", "boot_id": "{boot}"}}'
    lease = f'{{"id": "J1", "kind": "job", "devices": [], "since": 1.0, "owner": {owner}}}'
    edit_state(queue, "INSERT INTO leases VALUES ('J1', ?)", lease)
    queue.ensure_broker()
    (job,) = queue.end(id)
    assert (job["state"], job["tries"]) == ("complete", 1)


def test_a_retried_job_is_not_taken_for_its_earlier_run(queue: QueueSite) -> None:
    id = queue.shell("echo run; [ -e fine ] || exit 9; while ! [ -e go ]; do sleep 0.05; done")
    assert queue.end(id)[0]["exit_code"] == 9
    go(queue, "fine")
    queue.act("retry", id)
    queue.until(id, "running")
    queue.restart()
    assert queue.job(id)["state"] == "running"
    go(queue, "go")
    (job,) = queue.end(id)
    assert (job["state"], job["exit_code"], queue.output(id)) == ("complete", 0, "run\nrun\n")


def test_dependents_of_a_failure_that_nobody_heard_of_do_not_start(queue: QueueSite) -> None:
    first = queue.submit("false", hold=True)
    second = queue.shell("touch ran", after=[first])
    queue.run("stop")
    edit_state(
        queue, "UPDATE jobs SET state = 'failed', body = json_set(body, '$.state', 'failed') WHERE id = ?", first
    )
    queue.ensure_broker()
    (job,) = queue.end(second)
    assert (job["state"], job["why"]) == ("killed", f"job {first}, which it comes after, is failed")
    assert not (queue.folder / "ran").exists()


# Each job proves for itself that it has its device alone, and writes one line when it begins and one when it ends.
PROOF = """\
mkdir "device.$GPULEASE_DEVICES" || echo "$GPULEASE_JOB" >>double
echo begin >>"$GPULEASE_JOB.ran"
sleep {length}
rmdir "device.$GPULEASE_DEVICES"
echo end >>"$GPULEASE_JOB.ran"
"""


def run_through_kills(queue: QueueSite, count: int, kills: int, longest: float) -> None:
    dice = random.Random(count)
    ids = queue.submit_all([["sh", "-c", PROOF.format(length=dice.random() * longest)] for _ in range(count)])
    moments = sorted(dice.sample(range(count // 20, count - count // 10), kills))
    for moment in moments:
        wait_until(lambda moment=moment: _ended(queue) >= moment, 300)  # type: ignore[misc]
        queue.restart()
    wait_until(lambda: _ended(queue) == count, 300)
    ran = {id: (queue.folder / f"{id}.ran").read_text() for id in ids}
    assert set(ran.values()) == {"begin\nend\n"}, {i: t for i, t in ran.items() if t != "begin\nend\n"}
    assert not (queue.folder / "double").exists()
    assert queue.ask("ls")["counts"] == {"complete": count}


def _ended(queue: QueueSite) -> int:
    counts = queue.ask("ls", most=1)["counts"]
    return int(
        counts.get("complete", 0) + sum(counts.get(state, 0) for state in ("failed", "lost", "killed", "invalid"))
    )


@pytest.mark.timeout(600)
def test_60_jobs_run_once_each_while_the_broker_is_killed_3_times(queue: QueueSite) -> None:
    run_through_kills(queue, 60, 3, 0.1)


@pytest.mark.long("queue")
@pytest.mark.timeout(900)
def test_1000_jobs_run_once_each_while_the_broker_is_killed_20_times(queue: QueueSite) -> None:
    run_through_kills(queue, 1000, 20, 0.2)


@pytest.mark.long("queue")
@pytest.mark.timeout(600)
def test_a_gigabyte_of_output_is_kept(queue: QueueSite) -> None:
    id = queue.shell("head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo end")
    queue.until(id, "running")
    wait_until(lambda: queue.job(id)["state"] == "complete", 300)
    assert os.path.getsize(queue.job(id)["log"]) == 1_000_000_005
    assert queue.run("log", str(id), "--tail", "1").stdout == "end\n"


def test_a_batch_sent_twice_is_queued_once(queue: QueueSite) -> None:
    fields = {"request": {}, "options": {"cwd": "/", "environment": {}}, "commands": [["true"]] * 3, "token": "t"}
    first = queue.ask("add", **fields)
    queue.restart()
    assert queue.ask("add", **fields) == first == {"first": 1, "last": 3, "left_out": []}
    assert queue.ask("add", **{**fields, "token": "u"}) == {"first": 4, "last": 6, "left_out": []}
