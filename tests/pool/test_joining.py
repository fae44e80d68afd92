"""Workers that join a run, and a later program's own shared data for warm workers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support import pool_tasks
from support.machine import Machine
from support.waiting import wait_until

import gpulease
from gpulease.errors import CannotPickle, NotEnoughDevices, UsageError

TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def warm(in_machine: Machine, tmp_path: Path) -> Iterator[Machine]:
    """One warm worker with shared data of its pool's own."""
    numpy.savez(tmp_path / "data.npz", array=numpy.arange(10.0), kept=numpy.ones(3))
    in_machine.environ["PYTHONPATH"] = TESTS
    done = in_machine.run("pool", "start", "warm", "--init", "os:getpid", "--shared", str(tmp_path / "data.npz"))
    assert done.returncode == 0, done.stderr
    yield in_machine
    in_machine.run("pool", "stop", "--now", "warm")


# -------------------------------------------------------------------- new shared data


@pytest.mark.parametrize("size", [10, 200_000])  # in the message, and mapped
def test_a_later_program_gives_warm_workers_new_shared_data(warm: Machine, size: int) -> None:
    with gpulease.Pool.connect("warm") as first:
        pid = first.submit(pool_tasks.pid).result(30)
        assert first.submit(pool_tasks.shared_sum, "array").result(30) == 45
    new = numpy.arange(float(size)) + 1
    with gpulease.Pool.connect("warm", shared={"array": new, "more": new * 2}) as second:
        assert second.submit(pool_tasks.shared_sum, "array").result(30) == new.sum()
        assert second.submit(pool_tasks.shared_sum, "more").result(30) == 2 * new.sum()
        assert second.submit(pool_tasks.shared_sum, "kept").result(30) == 3  # what it does not name stays
        assert second.submit(pool_tasks.pid).result(30) == pid  # not started anew
        assert second.submit(pool_tasks.state).result(30) == pid
        with pytest.raises(ValueError, match="read-only"):
            second.submit(pool_tasks.write_shared, "array").result(30)
    with gpulease.Pool.connect("warm") as third:
        assert third.submit(pool_tasks.shared_sum, "array").result(30) == 45


def test_programs_at_the_same_time_have_each_their_own(warm: Machine) -> None:
    with (
        gpulease.Pool.connect("warm", shared={"array": numpy.full(4, 1.0)}) as one,
        gpulease.Pool.connect("warm", shared={"array": numpy.full(4, 2.0)}) as other,
    ):
        names = ["array"] * 100
        pairs = list(zip(one.map(pool_tasks.shared_sum, names), other.map(pool_tasks.shared_sum, names), strict=True))
    assert pairs == [(4, 8)] * 100
    # A worker that follows a dead one has them too.
    with gpulease.Pool.connect("warm", retries=0, shared={"array": numpy.full(4, 1.0)}) as pool:
        assert pool.submit(pool_tasks.leave, 3).exception(30)
        assert pool.submit(pool_tasks.shared_sum, "array").result(30) == 4


def test_shared_data_that_a_worker_cannot_read_fails_the_items_and_not_the_worker(warm: Machine) -> None:
    with gpulease.Pool.connect("warm", shared={"bad": pool_tasks.RaisesWhenRead(ValueError)}) as pool:
        error = pool.submit(pool_tasks.pid).exception(30)
        assert isinstance(error, ValueError)
        assert "while it was read" in str(error)
    with gpulease.Pool.connect("warm") as pool:
        assert pool.submit(pool_tasks.pid).result(30) == pool.submit(pool_tasks.state).result(30)
    with pytest.raises(CannotPickle):
        gpulease.Pool.connect("warm", shared={"bad": threading.Lock()})
    with pytest.raises(UsageError):
        gpulease.Pool.connect("warm", shared=[1])  # type: ignore[arg-type]


# -------------------------------------------------------------------- workers that join


def both_at_once(pool: gpulease.Pool, folder: Path, grow: Any) -> set[Any]:
    """The GPUs of two items of one map, which end only when both of them run."""
    marks = [str(folder / "one"), str(folder / "two")]
    results = pool.map(pool_tasks.mark_and_wait_for_other, marks, reversed(marks))
    pool_tasks.wait_for(marks[0])
    grow()
    return set(results)


def test_a_worker_that_another_process_adds_joins_a_map_under_way(warm: Machine, tmp_path: Path) -> None:
    def grow() -> None:
        done = warm.run("pool", "grow", "warm", "--devices", "3")
        assert (done.returncode, done.stdout) == (0, "warm: 2 ready\n"), done.stderr

    with gpulease.Pool.connect("warm") as pool:
        assert both_at_once(pool, tmp_path, grow) == {"0", "3"}
    assert [worker["gpus"] for worker in warm.json("pool", "ls")["pools"][0]["workers"]] == ["0", "3"]


def test_a_program_adds_workers_to_its_own_pool_and_to_a_named_one(warm: Machine, tmp_path: Path) -> None:
    with gpulease.Pool(gpus=1, devices=1) as pool:
        (tmp_path / "own").mkdir()
        assert both_at_once(pool, tmp_path / "own", lambda: pool.grow(devices=[2])) == {"1", "2"}
        assert len(warm.json("status")["leases"]) == 3
    with gpulease.Pool.connect("warm") as pool:
        pool.grow(2)
        wait_until(lambda: len(pool.gpus) == 3)


def test_what_cannot_grow_says_why(warm: Machine) -> None:
    done = warm.run("pool", "grow", "warm", "--gpus", "4")
    assert done.returncode == 1, done.stderr
    assert "asks for 5 GPUs, and this machine has 4" in done.stderr
    assert warm.run("pool", "grow", "nobody").returncode == 1
    with gpulease.Pool.connect("warm") as pool, pytest.raises(UsageError, match="gpus is 0"):
        pool.grow(0)
    with gpulease.Pool(gpus="all-idle") as pool, pytest.raises(UsageError, match="grows by itself"):
        pool.grow()
    with pytest.raises(NotEnoughDevices):
        gpulease.Pool(gpus=9)
