"""The reason of what waits fits: whole at 80 columns, and in a pipe with all of the command."""

from __future__ import annotations

import re
import time

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.render.terminal import Terminal, plain_table

LONG = ["python", "train.py", "--rate", "0.001", "--folder", "x" * 100]
BLOCK = "while ! [ -e go ]; do sleep 0.05; done"


def waiting_for_something(queue: QueueSite) -> dict[int, str]:
    """Jobs that wait, each for another reason, with the short form of it."""
    running = queue.shell(BLOCK, {"gpus": 2})
    queue.until(running, "running")
    return {
        queue.submit(*LONG, request={"gpus": 4}): "needs 4, 2 free",
        queue.submit(*LONG, after=[running]): f"after {running}",
        queue.submit(*LONG, request={"not_before": 4e9}): "asked for in",
    }


def test_ls_shows_short_reasons_whole_at_80_columns(queue: QueueSite) -> None:
    wanted = waiting_for_something(queue)
    jobs = {job["id"]: job for job in queue.json("ls")["jobs"]}
    narrow, piped = (queue.run("ls", **more).stdout for more in ({"COLUMNS": "80"}, {}))
    for id, short in wanted.items():
        assert jobs[id]["why_short"].startswith(short)
        line = next(line for line in narrow.splitlines() if line.startswith(f"{id} "))
        assert f"[{jobs[id]['why_short']}]" in line
        assert len(line) <= 80
        assert f"[{jobs[id]['why_short']}] {' '.join(LONG)}\n" in piped
        assert jobs[id]["why_waiting"] in queue.run("show", str(id)).stdout
        assert jobs[id]["why_waiting"] in queue.run("explain", str(id)).stdout
    (queue.folder / "go").touch()


def test_status_shows_short_reasons_whole_at_80_columns(queue: QueueSite) -> None:
    wanted = waiting_for_something(queue)
    line = {entry["id"]: entry for entry in queue.json("status")["line"]}
    shown = queue.run("status", COLUMNS="80").stdout
    for id in wanted:
        assert line[f"J{id}"]["why_short"] == queue.job(id)["why_short"]
        assert line[f"J{id}"]["why"] == queue.job(id)["why_waiting"]
        assert line[f"J{id}"]["why_short"] in shown
    assert max(map(len, shown.splitlines())) <= 80
    (queue.folder / "go").touch()


def test_wide_columns_give_way_to_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of a user may have 32 characters."""
    monkeypatch.setenv("COLUMNS", "80")
    row = ("123456", "waiting", "5", "0,1,2,3,4,5,6,7", "3d04h", "u" * 32, f"[{'r' * 24}] python train.py")
    (line,) = plain_table([row], Terminal(), least=26)
    assert "r" * 24 in line
    assert len(line) <= 80


def test_a_start_is_told_as_a_range_by_place_and_only_where_something_is_known(queue: QueueSite) -> None:
    long = {"gpus": 4, "duration": 240_000.0}  # so that minutes of a slow machine do not show
    queue.until(queue.shell(BLOCK, long), "running")
    first, second, unsure, last = (
        queue.submit(*LONG, request=request) for request in (long, long, {"gpus": 4}, {"gpus": 4})
    )
    jobs = [queue.job(id) for id in (unsure, first, second)]
    assert jobs[0]["expected_start"] is not None, "it counts as shorter than days, and waits for what was declared"
    assert [job["expected_start"] for job in jobs[1:]] == [None, None], "nobody knows how long that one goes on"
    now = time.time()
    assert now < jobs[0]["expected_start"] < jobs[0]["expected_latest"] < now + 10 * 240_000
    line = {entry["id"]: entry for entry in queue.json("status")["line"]}
    assert line[f"J{unsure}"]["expected_latest"] > line[f"J{unsure}"]["expected_start"] > now
    assert queue.json("explain", str(unsure))["expected_latest"] > now
    narrow = {row.split()[0]: row for row in queue.run("ls", COLUMNS="80").stdout.splitlines()}
    assert re.search(r" in \d+[hd]-\d+d ", narrow[str(unsure)])
    assert "[needs 4, 0 free]" in narrow[str(unsure)]
    assert " in " not in narrow[str(last)]
    assert "likely" not in queue.job(last)["why_waiting"]
    assert ", 9 times in 10 within " in queue.job(unsure)["why_waiting"]
    (queue.folder / "go").touch()
