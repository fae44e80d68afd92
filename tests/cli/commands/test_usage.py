"""`gpulease usage`: GPU-hours and how jobs ended, one's own or everybody's, for people and programs."""

from __future__ import annotations

import csv
import io
from typing import Any

import pytest
from support.queue_site import QueueSite, fresh_queue, inside  # noqa: F401  # pytest finds the fixtures here
from support.waiting import wait_for_end, wait_until

import gpulease
from gpulease.cli.commands.usage import shown
from gpulease.errors import UsageError
from gpulease.protocol.messages import UsageDocument
from gpulease.render.terminal import Terminal


@pytest.fixture
def worked(queue: QueueSite) -> QueueSite:
    """Jobs that ended in several ways, and a lease that is held."""
    ids = [
        queue.shell("exit 0", label="good"),
        queue.shell("exit 3", label="bad"),
        queue.shell("echo torch.OutOfMemoryError; exit 1", label="bad"),
        queue.submit("true", request={"gpus": 0}),
    ]
    killed = queue.shell("sleep 600", label="=1+1")
    queue.until(killed, "running")
    queue.act("kill", killed)
    queue.end(*ids, killed)
    queue.run("get", "--devices", "0,2", "--for", "1h")
    return queue


def test_jobs_and_gpu_hours_are_added_up_by_what_is_asked_for(worked: QueueSite) -> None:
    me = worked.ask("ping")["user"]
    ends = {"complete": 2, "failed": 1, "out-of-memory": 1, "killed": 1}
    for by in ("user", "day"):
        reply = worked.json("usage", "--by", by)
        [row] = reply["rows"]
        assert {**row, "name": "total"} == reply["total"]
        assert (row["jobs"], row["granted"]) == (ends, 6)
        assert row["held"] > 0
        assert row["mean_wait"] >= 0
        assert row["name"] == me or by == "day"
    labels = {row["name"]: row["jobs"] for row in worked.json("usage", "--by", "label")["rows"]}
    assert labels == {
        "good": {"complete": 1},
        "bad": {"failed": 1, "out-of-memory": 1},
        "=1+1": {"killed": 1},
        "-": {"complete": 1},
    }
    by_gpu = worked.json("usage", "--by", "gpu")
    rows = {row["name"]: row for row in by_gpu["rows"]}
    assert rows["2"]["held"] > 0
    assert sum(row["held"] for row in rows.values()) == pytest.approx(by_gpu["total"]["held"], abs=0.01)
    assert by_gpu["total"]["jobs"] == ends  # also of the job that had no GPU
    assert worked.json("usage", "--since", "2h", "--until", "1h")["rows"] == []
    assert worked.json("usage", "--since", "40d")["step"] == 3600
    groups = worked.json("usage", "--by", "group")
    assert groups["total"]["jobs"] == ends
    assert groups["rows"]


def test_it_survives_a_broker_that_was_stopped(worked: QueueSite) -> None:
    worked.run("release", "--mine")
    before = worked.json("usage")["rows"]
    broker = wait_until(worked.broker_pid)
    worked.run("stop")
    wait_for_end(broker)
    worked.ensure_broker()
    assert worked.json("usage")["rows"] == before


def test_it_is_shown_in_a_table_and_in_comma_separated_values(worked: QueueSite) -> None:
    reply = worked.run("usage", "--by", "label", COLUMNS="80", NO_COLOR="1").stdout
    assert max(map(len, reply.splitlines())) <= 80
    assert "\x1b" not in reply
    title, heading, *rows, total = reply.splitlines()
    assert title.startswith("GPU-hours of everybody from ")
    assert heading.split() == ["LABEL", "HELD", "BUSY", "IDLE", "WAIT", "JOBS"]
    assert {row.split()[0] for row in rows} == {"good", "bad", "=1+1", "-"}
    assert total.startswith("total ")
    values = list(csv.DictReader(io.StringIO(worked.run("usage", "--by", "label", "--csv").stdout)))
    assert {row["label"] for row in values} == {"good", "bad", "'=1+1", "-"}  # which no spreadsheet computes
    [bad] = [row for row in values if row["label"] == "bad"]
    assert (bad["failed"], bad["out_of_memory"], bad["complete"]) == ("1", "1", "0")
    assert float(bad["held_hours"]) >= 0


def test_what_is_wrong_is_said_in_a_sentence(queue: QueueSite) -> None:
    for words in (("--by", "moon"), ("--since", "soon"), ("--csv", "--json"), ("--since", "1h", "--until", "2h")):
        done = queue.run("usage", *words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "Traceback" not in done.stderr
    assert "nothing was held" in queue.run("usage").stdout


@pytest.mark.usefixtures("inside")
def test_python_has_the_same(worked: QueueSite) -> None:
    reply = gpulease.usage(since="1h", by="label")
    assert {row["name"] for row in reply["rows"]} == {"good", "bad", "=1+1", "-"}
    with pytest.raises(UsageError, match="by 'moon'"):
        gpulease.usage(by="moon")


def test_a_bar_is_as_long_as_what_was_held_and_full_as_far_as_it_was_busy() -> None:
    row: Any = {"outside": 7200.0, "idle_share": 0.25, "granted": 2, "mean_wait": 190.0, "jobs": {"complete": 3}}
    rows: Any = [
        {**row, "name": "ada", "held": 36000.0, "known": 36000.0, "busy": 18000.0, "idle": 9000.0},
        {**row, "name": "a\x1b[31mb", "held": 18000.0, "known": 0.0, "busy": 0.0, "idle": 0.0, "idle_share": None},
    ]
    reply: UsageDocument = {
        "since": 0.0, "until": 1e9, "step": 60, "by": "user", "everybody": False, "rows": rows, "total": rows[0],
        "note": None,
    }  # fmt: skip
    terminal = Terminal(io.StringIO())
    terminal.cuts, terminal.unicode = True, False
    title, heading, first, second, _ = shown(reply, terminal)
    assert "of your own" in title
    assert heading.split() == ["USER", "HELD", "BUSY", "IDLE", "OUTSIDE", "WAIT", "JOBS"]
    assert first.split() == ["ada", "10.0", "5.00", "25%", "2.00", "3m10s", "#####.....", "3", "complete"]
    assert second.split()[-6:] == ["-", "2.00", "3m10s", ".....", "3", "complete"]
    assert "\x1b" not in second
