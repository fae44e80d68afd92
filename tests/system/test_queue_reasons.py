"""The reason of what waits fits: whole at 80 columns, and in a pipe with all of the command."""

from __future__ import annotations

import pytest
from support.queue_site import QueueSite, fresh_queue  # noqa: F401  # pytest finds the fixture here

from gpulease.cli.render import Terminal, plain_table

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


def test_a_start_is_expected_by_place_and_only_where_it_was_declared(queue: QueueSite) -> None:
    long = {"gpus": 4, "duration": 240_000.0}  # so that minutes of a slow machine do not show
    queue.until(queue.shell(BLOCK, long), "running")
    first, second, unsure, last = (
        queue.submit(*LONG, request=request) for request in (long, long, {"gpus": 4}, {"gpus": 4})
    )
    starts = [queue.job(id)["expected_start"] for id in (first, second, unsure, last)]
    assert starts[1:] == [starts[0] + 240_000, starts[0] + 480_000, None]
    line = {entry["id"]: entry["expected_start"] for entry in queue.json("status")["line"]}
    assert [line[f"J{id}"] for id in (first, second, unsure, last)] == starts
    assert queue.json("explain", str(second))["expected_start"] == starts[1]
    narrow = {row.split()[0]: row for row in queue.run("ls", COLUMNS="80").stdout.splitlines()}
    for id, start in ((first, "in 3d"), (second, "in 6d"), (unsure, "in 8d")):
        assert f" {start} " in narrow[str(id)]
        assert "[needs 4, 0 free]" in narrow[str(id)]
    assert " in " not in narrow[str(last)]
    assert "perhaps" not in queue.job(last)["why_waiting"]
    assert "perhaps in 6 d" in queue.job(second)["why_waiting"]
    table = queue.run("status", COLUMNS="80").stdout
    assert "in 8d " in next(row for row in table.splitlines() if row.startswith(f"J{unsure} "))
    (queue.folder / "go").touch()
