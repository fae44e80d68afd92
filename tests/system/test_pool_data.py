"""Shared data is in memory once and read-only; each worker has its own lease; nothing is left behind."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support import pool_tasks as tasks
from support.machine import Machine

import gpulease
from gpulease.errors import CannotPickle, UsageError


def echo(value: Any) -> Any:
    return value


def who_after(value: int) -> Any:
    time.sleep(0.01)
    return tasks.who()


def change(array: Any) -> Any:
    array += 1
    return array


def memory_of_shared(name: str) -> tuple[int, int]:
    """(KiB of the mapped memory that are a copy of this process's own, the mapped file's identity)."""
    array = gpulease.worker().shared[name]
    address = array.ctypes.data
    float(array.sum())
    with open("/proc/self/smaps") as file:
        private, inside, inode = 0, False, 0
        for line in file:
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                begin, end = (int(part, 16) for part in first.split("-"))
                inside = begin <= address < end
                inode = int(line.split()[4]) if inside else inode
            elif inside and first == "Anonymous:":
                private += int(line.split()[1])
    return private, inode


@pytest.fixture
def array() -> Any:
    return numpy.arange(1_000_000, dtype="float64")


def test_shared_data_is_one_mapping_for_all_workers_and_read_only(in_machine: Machine, array: Any) -> None:
    with gpulease.Pool(gpus=2, shared={"array": array, "small": [1, 2]}) as pool:
        assert list(pool.map(tasks.shared_sum, ["array"] * 10)) == [array.sum()] * 10
        seen = set(pool.map(memory_of_shared, ["array"] * 20))
        assert {private for private, _ in seen} == {0}
        assert len({inode for _, inode in seen}) == 1
        with pytest.raises(ValueError, match="read-only"):
            pool.submit(tasks.write_shared, "array").result(30)


def test_shared_data_stays_as_it_was_given(in_machine: Machine) -> None:
    grows = bytearray(b"x" * 100_000)
    with gpulease.Pool(gpus=1, shared={"grows": grows}) as pool:
        grows.extend(b"y" * 100_000)
        assert pool.submit(lambda: len(gpulease.worker().shared["grows"])).result(30) == 100_000


class Restless:
    """Grows while it is pickled."""

    def __init__(self) -> None:
        self.parts = {"one": 1}

    def __reduce__(self) -> Any:
        for part in self.parts:
            self.parts[f"{part}+"] = 2
        return (dict, ())


def test_shared_data_that_changes_while_it_is_copied_is_refused() -> None:
    with pytest.raises(CannotPickle, match="changed while it was copied"):
        gpulease.Pool(shared={"restless": Restless()})


def test_large_arguments_and_results_travel_whole_and_may_be_changed(in_machine: Machine, array: Any) -> None:
    with gpulease.Pool(gpus=1) as pool:
        for size in (10, 20_000, 1_000_000):
            result = pool.submit(change, array[:size].copy()).result(30)
            assert (result == array[:size] + 1).all()
            result[0] = 5  # this program's own
        assert pool.submit(echo, b"x" * 3_000_000).result(30) == b"x" * 3_000_000
        assert pool.submit(echo, ["y" * 50] * 100_000).result(30)[-1] == "y" * 50
        assert (pool.submit(echo, array[::2]).result(30) == array[::2]).all()
        total = sum(len(each) for each in pool.map(echo, (array[:200_000] for _ in range(60))))
        assert total == 60 * 200_000


def test_no_descriptor_is_left_open(in_machine: Machine, array: Any) -> None:
    before = set(os.listdir("/proc/self/fd"))
    threads = set(threading.enumerate())
    with gpulease.Pool(gpus=1, shared={"array": array}) as pool:
        results = [pool.submit(echo, array).result(30) for _ in range(20)]
        during = len(os.listdir("/proc/self/fd"))
        assert during < len(before) + 12  # a mapping needs no descriptor
    del results
    assert set(os.listdir("/proc/self/fd")) <= before
    assert set(threading.enumerate()) <= threads


def test_each_worker_holds_a_lease_of_its_own_and_sees_only_its_gpu(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=4, gpus_per_worker=2) as pool:
        seen: dict[str, Any] = {}
        while len(seen) < 2:
            seen.update((current.name, current) for current in pool.map(who_after, range(4)))
        status = in_machine.json("status")
        assert {lease["kind"] for lease in status["leases"]} == {"pool"}
        assert {lease["id"] for lease in status["leases"]} == {current.lease for current in seen.values()}
        assert sorted(label for current in seen.values() for label in current.gpus.split(",")) == ["0", "1", "2", "3"]
        visible = pool.submit(tasks.environment, "CUDA_VISIBLE_DEVICES").result(30)
        assert tuple(visible.split(",")) in {current.uuids for current in seen.values()}


def test_workers_share_a_gpu_by_memory(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=3, mem="6G", devices="0") as pool:
        assert list(pool.map(tasks.double, range(10))) == [2 * value for value in range(10)]
        for _ in range(100):
            if len(pool.gpus) == 3:
                break
            pool.submit(tasks.pid).result(30)
        assert set(pool.gpus) == {"0"}


def test_the_first_worker_works_while_the_others_wait(in_machine: Machine) -> None:
    with in_machine.occupied("1,2,3"), gpulease.Pool(gpus=4) as pool:
        assert list(pool.map(tasks.double, range(50))) == [2 * value for value in range(50)]
        assert pool.gpus == ["0"]


def test_init_runs_once_in_each_worker_and_its_value_is_kept(in_machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    with gpulease.Pool(gpus=1, init=tasks.initialise, initargs=(str(folder),)) as pool:
        states = {pool.submit(tasks.state).result(30) for _ in range(5)}
        assert states == {f"state of {name}" for name in os.listdir(folder)}
        assert len(states) == 1


def test_outside_of_a_worker_there_is_no_worker() -> None:
    with pytest.raises(UsageError, match="no worker"):
        gpulease.worker()


def test_results_are_written_as_they_come_and_skipped_the_second_time(in_machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "results"

    def items() -> Iterator[int]:
        yield from range(10)
        raise LookupError("the program crashed here")

    with gpulease.Pool(gpus=1, results=folder) as pool:
        first = pool.map(tasks.add, items())
        assert [next(first) for _ in range(10)] == list(range(10))
        assert len(list(folder.iterdir())) == 10
        marks = str(tmp_path / "marks")
        assert list(pool.map(count_runs, [marks] * 5, range(5))) == list(range(5))
        assert list(pool.map(count_runs, [marks] * 8, range(8))) == list(range(8))
        assert Path(marks).read_text() == "x" * 8
        assert list(pool.map(tasks.double, [7, 7], key=lambda value: f"item/{value}")) == [14, 14]
    assert len([path for path in folder.iterdir() if path.name.startswith("item_7")]) == 2


def count_runs(path: str, value: int) -> int:
    with open(path, "a") as file:
        file.write("x")
    return value


def test_one_log_names_the_worker_on_each_line(in_machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "pool.log"
    with gpulease.Pool(gpus=1, log=log) as pool:
        pool.submit(print, "hello\nworld").result(30)
    text = log.read_text()
    assert "[worker 1, GPU 0] hello\n" in text
    assert "[worker 1, GPU 0] world\n" in text
    assert "[pool] worker 1, GPU 0 is ready" in text


def test_the_progress_bar_shows_count_failures_and_gpus(
    in_machine: Machine, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with gpulease.Pool(gpus=1) as pool:
        list(pool.map(tasks.fail_odd, range(10), progress="sums", return_errors=True))
    shown = capfd.readouterr().err
    assert "sums" in shown
    assert "10/10" in shown
    assert "5 failed" in shown
    assert "GPU 0" in shown
