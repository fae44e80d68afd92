"""Each row of the page for gpulimit's users is true: both columns leave the queue in the same state."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gpulimit_in_process import InProcess
from support.page_tables import tables
from support.waiting import wait_until

ROWS = tables("from-gpulimit.md")[0]
SERVER = ["gpulimit_server", "nohup gpulimit_server &"]  # test_gpulimit.py starts it
GPUS = 2


@pytest.fixture(name="two")
def two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[InProcess]]:
    machines = [InProcess(tmp_path / name, GPUS, monkeypatch) for name in ("old", "new")]
    yield machines
    for machine in machines:
        machine.close()


def jobs(machine: InProcess) -> list[tuple[Any, ...]]:
    """What is in the queue, in its order."""
    rows = machine.json("ls", "--all")["jobs"]
    return [(job["id"], job["state"], job["tries"], job["request"]["priority"], job["command"]) for job in rows]


def settled(machine: InProcess) -> list[tuple[Any, ...]] | None:
    """The queue, once nothing in it will change by itself."""
    found = jobs(machine)
    running = [job for job in found if job[1] == "running"]
    full = len(running) == GPUS or not any(job[1] == "waiting" for job in found)
    return found or [("empty",)] if full and all(job[4][0] == "sleep" for job in running) else None


def test_every_row(two: list[InProcess]) -> None:
    old, new = two
    assert [row.typed for row in ROWS[: len(SERVER)]] == SERVER
    for row in ROWS[len(SERVER) :]:
        typed, type = shlex.split(row.typed), shlex.split(row.type)
        assert (typed[0], type[0]) == ("gpulimit", "gpulease")
        both = old.gpulimit(*typed[1:]), new.gpulease(*type[1:])
        assert [done.code for done in both] == [0, 0], (row, both)
        assert "rror]" not in both[0].out, (row, both)
        wait_until(lambda: (found := settled(old)) is not None and found == settled(new))
    assert jobs(old) == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.typed)
def test_nothing_new_need_be_typed(row: Any) -> None:
    assert row.nothing_new.startswith("the same")
