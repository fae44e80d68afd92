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
