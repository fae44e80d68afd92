"""Shared data is in memory once and read-only; each worker has its own lease; nothing is left behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support import pool_tasks
from support.machine import Machine

import gpulease
from gpulease.errors import CannotPickle, UsageError


def echo(value: Any) -> Any:
    return value


def who_after(value: int) -> Any:
    time.sleep(0.01)
    return pool_tasks.who()


def change(array: Any) -> Any:
    array += 1
    return array


def memory_of_shared(name: str) -> tuple[int, int]:
    """(KiB of the mapped memory that are a copy of this process's own, the mapped file's identity)."""
    array = gpulease.worker().shared[name]
    float(array.sum())
    return pool_tasks.mapping_at(array.ctypes.data)


@pytest.fixture
def array() -> Any:
    return numpy.arange(1_000_000, dtype="float64")


def test_shared_data_is_one_mapping_for_all_workers_and_read_only(in_machine: Machine, array: Any) -> None:
    with gpulease.Pool(gpus=2, shared={"array": array, "small": [1, 2]}) as pool:
        assert list(pool.map(pool_tasks.shared_sum, ["array"] * 10)) == [array.sum()] * 10
        seen = set(pool.map(memory_of_shared, ["array"] * 20))
        assert {private for private, _ in seen} == {0}
        assert len({inode for _, inode in seen}) == 1
        with pytest.raises(ValueError, match="read-only"):
            pool.submit(pool_tasks.write_shared, "array").result(30)


def try_to_write(path: tuple[Any, ...]) -> str:
    value: Any = gpulease.worker().shared
    for step in path:
        value = value[step]
    try:
        value[0] = 7
    except (ValueError, TypeError) as error:
        return str(error)
    return "written"


def test_arrays_of_every_kind_and_byte_buffers_are_read_only(in_machine: Machine, array: Any) -> None:
    shared = {
        "strided": array[::2],
        "columns": array.reshape(1000, 1000)[:, :700],
        "small": numpy.ones(3),
        "inside": {"list": [numpy.zeros(2)], "tuple": (array[10:0:-1],)},
        "objects": numpy.array([1, "two"], dtype=object),
        "bytes": bytearray(b"x" * 2_000_000),
        "few": bytearray(b"x"),
    }
    paths = [(name,) for name in shared if name != "inside"] + [("inside", "list", 0), ("inside", "tuple", 0)]
    with gpulease.Pool(gpus=2, shared=shared) as pool:
        for path, reply in zip(paths, pool.map(try_to_write, paths), strict=True):
            assert "read-only" in reply or "cannot modify" in reply, path
        assert pool.submit(pool_tasks.shared_sum, "columns").result(30) == shared["columns"].sum()
        seen = set(pool.map(memory_of_shared, ["strided"] * 20))
        assert {private for private, _ in seen} == {0}
        assert pool.submit(lambda: bytes(gpulease.worker().shared["few"])).result(30) == b"x"


@pytest.mark.long("frameworks")
def test_a_shared_tensor_is_mapped_and_a_write_to_it_stays_in_its_worker(in_machine: Machine) -> None:
    import torch

    def write(number: int) -> float:
        gpulease.worker().shared["tensor"][0, 0] += number
        return float(gpulease.worker().shared["tensor"][0, 0])

    def private_pages() -> int:
        tensor = gpulease.worker().shared["tensor"]
        tensor.sum()
        return pool_tasks.mapping_at(tensor.data_ptr())[0]

    tensor = torch.ones((1000, 1000), dtype=torch.bfloat16).t()
    with gpulease.Pool(gpus=2, shared={"tensor": tensor}) as pool:
        assert pool.submit(private_pages).result(60) == 0
        assert max(pool.map(write, [1] * 10)) > 1
    assert float(tensor[0, 0]) == 1


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
    with pytest.raises(UsageError, match="names as keys"):
        gpulease.Pool(shared=numpy.ones(3))  # type: ignore[arg-type]


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
        visible = pool.submit(pool_tasks.environment, "CUDA_VISIBLE_DEVICES").result(30)
        assert visible is not None
        assert tuple(visible.split(",")) in {current.uuids for current in seen.values()}


def test_workers_share_a_gpu_by_memory(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=3, mem="6G", devices="0") as pool:
        assert list(pool.map(pool_tasks.double, range(10))) == [2 * value for value in range(10)]
        for _ in range(100):
            if len(pool.gpus) == 3:
                break
            pool.submit(pool_tasks.pid).result(30)
        assert set(pool.gpus) == {"0"}


def test_the_first_worker_works_while_the_others_wait(in_machine: Machine) -> None:
    with in_machine.occupied("1,2,3"), gpulease.Pool(gpus=4) as pool:
        assert list(pool.map(pool_tasks.double, range(50))) == [2 * value for value in range(50)]
        assert pool.gpus == ["0"]


def test_init_runs_once_in_each_worker_and_its_value_is_kept(in_machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    with gpulease.Pool(gpus=1, init=pool_tasks.initialise, initargs=(str(folder),)) as pool:
        states = {pool.submit(pool_tasks.state).result(30) for _ in range(5)}
        assert states == {f"state of {name}" for name in os.listdir(folder)}
        assert len(states) == 1


def test_outside_of_a_worker_there_is_no_worker() -> None:
    with pytest.raises(UsageError, match="not a worker"):
        gpulease.worker()


def test_results_are_written_as_they_come_and_skipped_the_second_time(
    in_machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"

    def items() -> Iterator[int]:
        yield from range(10)
        raise LookupError("the program crashed here")

    with gpulease.Pool(gpus=1, results=folder) as pool:
        first = pool.map(pool_tasks.add, items())
        assert [next(first) for _ in range(10)] == list(range(10))
        assert len(list(folder.glob("*.pickle"))) == 10
        marks = str(tmp_path / "marks")
        assert list(pool.map(count_runs, [marks] * 5, range(5))) == list(range(5))
        assert list(pool.map(count_runs, [marks] * 8, range(8))) == list(range(8))
        assert Path(marks).read_text() == "x" * 8
        assert f"gpulease: 5 of 8 results were in {str(folder)!r} already and are reused." in capsys.readouterr().err
        assert list(pool.map(pool_tasks.double, [7, 7], key=lambda value: f"item/{value}")) == [14, 14]
    assert len([path for path in folder.iterdir() if path.name.startswith("item_7")]) == 2


def count_runs(path: str, value: int) -> int:
    with open(path, "a") as file:
        file.write("x")
    return value


class Adder:
    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, value: int) -> int:
        return value + self.number

    def add(self, value: int) -> int:
        return value + self.number


def made(number: int) -> Any:
    return lambda value: value + number


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (functools.partial(pool_tasks.add, 1), functools.partial(pool_tasks.add, 100)),
        (functools.partial(pool_tasks.add, right=1), functools.partial(pool_tasks.add, right=100)),
        (Adder(1), Adder(100)),
        (Adder(1).add, Adder(100).add),
        (made(1), made(100)),
        (lambda value: value + 1, lambda value: value + 100),
        (lambda value, number=1: value + number, lambda value, number=100: value + number),
    ],
    ids=["partial", "keyword", "instance", "method", "closure", "lambda", "default"],
)
def test_results_of_functions_that_keep_something_are_told_apart(
    in_machine: Machine, tmp_path: Path, one: Any, other: Any
) -> None:
    with gpulease.Pool(gpus=1, results=tmp_path / "results") as pool:
        assert list(pool.map(one, range(3))) == [1, 2, 3]
        assert list(pool.map(other, range(3))) == [100, 101, 102]
        assert list(pool.map(one, range(3))) == [1, 2, 3]
    assert len(list((tmp_path / "results").glob("*.pickle"))) == 6


RESUMES = """
import enum, functools, pathlib, sys, gpulease
from dataclasses import dataclass
@dataclass(frozen=True)
class Point:
    name: str
    tags: frozenset
class Colour(enum.Enum):
    RED = 1
def word(): return "".join(["a", "b"])  # another object each time
def items():
    same = word()
    first = len(sys.argv) > 2
    yield Point(word(), frozenset(["x", "y", "z", "u", "v"]))
    yield {"alpha", "beta", "gamma", "delta"}
    yield [same, same] if first else [word(), word()]
    yield {"b": 1, "a": 2} if first else {"a": 2, "b": 1}
    yield Colour.RED
    yield pathlib.Path("x")
scale = 3
def work(item, times):
    with open(sys.argv[1] + ".marks", "a") as file: file.write("x")
    return times
with gpulease.Pool(gpus=1, results=sys.argv[1]) as pool:
    assert len(list(pool.map(functools.partial(lambda item, times: work(item, times), times=scale), items()))) == 6
"""


def test_items_are_found_again_by_what_they_hold(machine: Machine, tmp_path: Path) -> None:
    for seed, more in (("1", ["first"]), ("2", [])):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                RESUMES.replace("sys.argv[1] +", repr(str(tmp_path / "r")) + " +"),
                tmp_path / "r",
                *more,
            ],
            env={**machine.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert all("are reused" in line for line in done.stderr.splitlines())
    assert (tmp_path / "r.marks").read_text() == "x" * 6


class Nameless:
    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol < 5:
            raise TypeError("not so")
        return (Nameless, ())


def test_what_cannot_be_named_is_said_once(in_machine: Machine, tmp_path: Path) -> None:
    with gpulease.Pool(gpus=1, results=tmp_path / "results") as pool:
        with pytest.warns(UserWarning, match="key=") as warned:
            assert len(list(pool.map(id, [Nameless(), Nameless()]))) == 2
        assert len(warned) == 1
        with pytest.raises(UsageError, match="key="):
            pool.map(functools.partial(echo, Nameless()), [1])
        assert list(pool.map(functools.partial(pool_tasks.double), [1], key=str)) == [2]


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
        list(pool.map(pool_tasks.fail_odd, range(10), progress="sums", return_errors=True))
        pool.map(pool_tasks.double, (value for value in range(7)), progress="unasked")
    shown = capfd.readouterr().err
    assert "unasked" in shown
    assert "7/7" in shown
    assert "sums" in shown
    assert "10/10" in shown
    assert "5 failed" in shown
    assert "GPU 0" in shown


STOPPED = """
import time, gpulease

with gpulease.Pool(gpus=1) as pool:
    results = pool.map(time.sleep, [0, 0, 0, 600, 600, 600], progress="naps")
    for _ in range(3):
        next(results)
    raise KeyboardInterrupt
"""


def test_the_bar_of_a_pool_that_was_interrupted_calls_nothing_failed(in_machine: Machine) -> None:
    environ = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", STOPPED], env=environ, capture_output=True, text=True, timeout=60)
    bar = next(line for line in done.stderr.splitlines() if "naps" in line)
    assert "3/6" in bar
    assert "3 not done" in bar
    assert "failed" not in bar
    assert "waiting" not in bar


def test_stored_results_are_counted_apart(
    in_machine: Machine, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with gpulease.Pool(gpus=1, results=tmp_path / "r") as pool:
        list(pool.map(pool_tasks.double, range(5)))
        list(pool.map(pool_tasks.double, range(8), progress="sums"))
    shown = capfd.readouterr().err
    assert "8/8" in shown
    assert "5 stored" in shown


def test_a_pool_is_shown_with_its_gpus(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=1) as pool:
        assert repr(pool).startswith("<pool: ")
        pool.submit(pool_tasks.double, 1).result(30)
        assert repr(pool) == "<pool: workers on GPU 0>"
    assert repr(pool) == "<pool: ended>"
