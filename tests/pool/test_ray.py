"""The same program on Ray: a real local cluster, with GPUs that only Ray believes in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray
from support import pool_tasks

import gpulease
from gpulease.errors import NotEnoughDevices, OutOfMemory, PoolBroken, PoolClosed, UsageError, WorkerDied

pytestmark = [
    pytest.mark.longer("pool"),
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(120),
]  # one start of Ray for all


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="class")
def pool(cluster: None) -> Iterator[gpulease.Pool]:
    with gpulease.Pool(gpus=2, engine="ray", shared={"array": numpy.arange(100_000.0)}, init=os.getpid) as pool:
        yield pool


class TestOfOnePool:
    """A worker of Ray takes seconds to start; the test that kills them is the last."""

    def test_results_are_right_in_order_and_workers_stay_warm(self, pool: gpulease.Pool) -> None:
        assert list(pool.map(pool_tasks.double, range(300))) == [2 * value for value in range(300)]
        pids = {pool.submit(pool_tasks.pid).result(60) for _ in range(10)}
        states = {pool.submit(pool_tasks.state).result(60) for _ in range(10)}
        assert pids | states == pids
        assert len(pids) <= 2
        assert pool.submit(pool_tasks.environment, "CUDA_VISIBLE_DEVICES").result(60) in ("0", "1")

    def test_shared_data_is_put_once_and_read_only(self, pool: gpulease.Pool) -> None:
        assert list(pool.map(pool_tasks.shared_sum, ["array"] * 4)) == [numpy.arange(100_000.0).sum()] * 4
        with pytest.raises(ValueError, match="read-only"):
            pool.submit(pool_tasks.write_shared, "array").result(60)

    def test_large_arguments_come_back_changed(self, pool: gpulease.Pool) -> None:
        result = pool.submit(lambda array: array + 1, numpy.arange(50_000.0)).result(60)
        assert (result == numpy.arange(50_000.0) + 1).all()

    def test_failure_is_local(self, pool: gpulease.Pool, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no 3") as caught:
            pool.submit(pool_tasks.fail, 3).result(60)
        assert "raise ValueError" in str(caught.value.__cause__)
        with pytest.raises(OutOfMemory):
            pool.submit(pool_tasks.out_of_memory).result(60)
        assert pool.submit(pool_tasks.die_once, str(tmp_path / "mark"), 7).result(60) == 7
        marks = tmp_path / "marks"
        with pytest.raises(WorkerDied):
            pool.submit(pool_tasks.die_and_count, str(marks)).result(90)
        assert marks.read_text() == "xxx"
        assert list(pool.map(pool_tasks.double, range(20))) == [2 * value for value in range(20)]


def test_bad_input_is_refused() -> None:
    with pytest.raises(NotEnoughDevices, match="Ray cluster has 2"):
        gpulease.Pool(gpus=3, engine="ray")
    with pytest.raises(UsageError, match="memory"):
        gpulease.Pool(mem="6G", engine="ray")
    with gpulease.Pool(gpus=1, engine="ray", init=pool_tasks.initialise_badly) as broken:
        future = broken.submit(pool_tasks.double, 1)
        with pytest.raises(PoolBroken, match="no model here"):
            future.result(60)
    closed = gpulease.Pool(gpus=1, engine="ray")
    closed.shutdown()
    with pytest.raises(PoolClosed):
        closed.submit(pool_tasks.double, 1)


def test_where_an_item_runs_is_told_and_actors_are_replaced_after_so_many() -> None:
    starts: list[Any] = []
    with gpulease.Pool(gpus=2, engine="ray", max_items=3, on_start=starts.append) as pool:
        reply = list(pool.map(pool_tasks.pid_and_count, range(12)))
        future = pool.submit(pool_tasks.own_gpu)
        assert future.result(60)[0] == str(future.device)
    assert max(count for _, count in reply) == 3
    assert len({pid for pid, _ in reply}) >= 4
    assert sorted(start.arguments[0] for start in starts if start.arguments) == list(range(12))
    assert {start.device for start in starts} <= {0, 1}
