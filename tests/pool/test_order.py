"""Results come once, right, in order; the standard library's rules for executors hold."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError, as_completed, wait
from pathlib import Path

import pytest
from support import pool_tasks
from support.machine import Machine

import gpulease
from gpulease.errors import CannotPickle, NotEnoughDevices, PoolClosed, UnknownDevice, UsageError


@pytest.fixture
def pool(in_machine: Machine) -> Iterator[gpulease.Pool]:
    with gpulease.Pool(gpus=2) as pool:
        yield pool


def test_map_keeps_the_order_and_takes_several_iterables(pool: gpulease.Pool) -> None:
    assert list(pool.map(pool_tasks.double, range(3000))) == [2 * value for value in range(3000)]
    assert list(pool.map(pool_tasks.add, [1, 2, 3], [10, 20])) == [11, 22]
    assert list(pool.map(pool_tasks.double, [])) == []


def test_unordered_results_are_all_there(pool: gpulease.Pool) -> None:
    assert sorted(pool.map_unordered(pool_tasks.double, range(2000))) == [2 * value for value in range(2000)]


def test_unordered_results_come_as_they_are_done(pool: gpulease.Pool, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    results = pool.map_unordered(pool_tasks.short_or_wait, [go] * 40, range(40))
    seen = [next(results)[0] for _ in range(39)]
    Path(go).touch()
    assert sorted(seen) == list(range(1, 40))
    assert [value for value, _ in results] == [0]


def test_nothing_stands_behind_a_long_item_while_a_worker_idles(pool: gpulease.Pool, tmp_path: Path) -> None:
    """Short ones make the pool send many ahead; then one of them is long."""
    go = str(tmp_path / "go")
    list(pool.map(pool_tasks.short_or_wait, [go] * 2000, range(1, 2001)))
    futures = [pool.submit(pool_tasks.short_or_wait, go, (value - 100) % 300) for value in range(300)]
    long = futures.pop(100)
    done, _ = wait(futures, timeout=20)
    assert len(done) == len(futures)
    assert not long.done()
    Path(go).touch()
    assert long.result(20)[0] == 0


def test_submit_with_keywords_and_as_completed(pool: gpulease.Pool) -> None:
    futures = {pool.submit(pool_tasks.add, value, right=1): value for value in range(20)}
    assert {future.result() - 1 for future in as_completed(futures, timeout=30)} == set(range(20))


def test_functions_of_main_and_closures_travel_by_value_and_follow_changes(pool: gpulease.Pool) -> None:
    offset = 1

    def shifted(value: int) -> int:
        return value + offset

    assert pool.submit(shifted, 1).result(30) == 2
    offset = 10
    assert pool.submit(shifted, 1).result(30) == 11
    assert list(pool.map(lambda value: value**2, range(5))) == [0, 1, 4, 9, 16]


def test_a_waiting_item_can_be_cancelled_and_a_running_one_cannot(pool: gpulease.Pool, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    running = [pool.submit(pool_tasks.mark_and_wait, str(tmp_path / f"mark{n}"), go) for n in range(2)]
    for number in range(2):
        pool_tasks.wait_for(str(tmp_path / f"mark{number}"))
    waiting = pool.submit(pool_tasks.double, 1)
    assert waiting.cancel()
    assert not running[0].cancel()
    Path(go).touch()
    assert len({future.result(30) for future in running}) == 2
    with pytest.raises(CancelledError):
        waiting.result(0)


def test_timeouts_are_the_callers_and_leave_the_item_running(pool: gpulease.Pool, tmp_path: Path) -> None:
    go = str(tmp_path / "go")
    future = pool.submit(pool_tasks.wait_for, go)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        next(pool.map(pool_tasks.wait_for, [go], timeout=0.01))
    Path(go).touch()
    assert future.result(30) == go


def test_input_is_read_a_bounded_way_ahead(pool: gpulease.Pool) -> None:
    taken = []

    def endless() -> Iterator[int]:
        value = 0
        while True:
            taken.append(value)
            yield value
            value += 1

    results = pool.map(pool_tasks.double, endless())
    assert [next(results) for _ in range(10)] == [2 * value for value in range(10)]
    assert len(taken) < 3000
    results.close()
    assert list(results) == []


def test_a_generator_that_raises_gives_what_came_before_it(pool: gpulease.Pool) -> None:
    def broken() -> Iterator[int]:
        yield from range(5)
        raise LookupError("no sixth")

    results = pool.map(pool_tasks.double, broken())
    assert [next(results) for _ in range(5)] == [0, 2, 4, 6, 8]
    with pytest.raises(LookupError, match="no sixth"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)


def test_all_of_a_map_runs_though_nobody_takes_its_results(in_machine: Machine, tmp_path: Path) -> None:
    dropped, kept = tmp_path / "dropped", tmp_path / "kept"
    with gpulease.Pool(gpus=2) as pool:
        pool.map(pool_tasks.count_run, [str(dropped)] * 3000)
        results = pool.map(pool_tasks.count_run, [str(kept)] * 3000)
    assert len(dropped.read_text()) == len(kept.read_text()) == 3000
    assert list(results) == [str(kept)] * 3000
    with pytest.raises(PoolClosed):
        pool.map(pool_tasks.double, [1])


def test_shutdown_without_waiting_runs_the_rest_of_the_input_too(in_machine: Machine) -> None:
    pool = gpulease.Pool(gpus=1)
    results = pool.map(pool_tasks.double, (value for value in range(3000)))
    pool.shutdown(wait=False)
    with pytest.raises(PoolClosed):
        pool.submit(pool_tasks.double, 1)
    assert list(results) == [2 * value for value in range(3000)]
    pool.shutdown()


def test_a_loop_that_is_left_cancels_what_has_not_begun(in_machine: Machine, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with gpulease.Pool(gpus=1) as pool:
        for _ in pool.map(pool_tasks.count_run_slowly, [str(mark)] * 500):
            break
    assert len(mark.read_text()) < 50


def test_an_error_in_a_loop_over_endless_input_ends_the_block(in_machine: Machine) -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    def leave() -> None:
        with gpulease.Pool(gpus=1) as pool:
            results = pool.map(pool_tasks.double, endless())
            assert next(results) == 2
            raise LookupError

    with pytest.raises(LookupError):
        leave()


def test_an_error_in_a_block_does_not_wait_for_workers_that_stand_in_the_line(in_machine: Machine) -> None:
    def leave() -> None:
        with gpulease.Pool(gpus=1, quiet=True) as pool:
            list(pool.map(pool_tasks.double, [1, 2, 3], timeout=0.5))

    with gpulease.acquire(4), pytest.raises(TimeoutError):
        leave()


@pytest.mark.parametrize("ordered", [True, False])
def test_results_come_out_while_the_input_still_waits(pool: gpulease.Pool, tmp_path: Path, ordered: bool) -> None:
    seen = threading.Event()

    def slow() -> Iterator[int]:
        yield from (1, 2, 3)
        assert seen.wait(30)
        yield 4

    folder = tmp_path / "results"
    results = (pool.map if ordered else pool.map_unordered)(pool_tasks.double, slow(), results=folder)
    assert {next(results) for _ in range(3)} == {2, 4, 6}
    assert len(list(folder.glob("*.pickle"))) == 3
    seen.set()
    assert list(results) == [8]


def test_an_item_that_cannot_be_pickled_fails_alone_in_its_place(pool: gpulease.Pool) -> None:
    items = [1, threading.Lock(), 3]
    kept = list(pool.map(pool_tasks.double, items, return_errors=True))
    assert [kept[0], type(kept[1]), kept[2]] == [2, CannotPickle, 6]
    results = pool.map(pool_tasks.double, iter(items))
    assert next(results) == 2
    with pytest.raises(CannotPickle):
        next(results)
    assert list(results) == [6]


def test_many_threads_share_one_pool(pool: gpulease.Pool) -> None:
    results: dict[int, list[int]] = {}

    def use(number: int) -> None:
        results[number] = list(pool.map(pool_tasks.add, range(300), [number] * 300))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [value + number for value in range(300)] for number in range(6)}


def test_after_shutdown_nothing_is_taken_and_all_is_done(in_machine: Machine) -> None:
    pool = gpulease.Pool(gpus=1)
    futures = [pool.submit(pool_tasks.double, value) for value in range(50)]
    pool.shutdown(wait=False)
    with pytest.raises(PoolClosed, match="shut down") as caught:
        pool.submit(pool_tasks.double, 1)
    assert isinstance(caught.value, RuntimeError)
    assert [future.result(30) for future in futures] == [2 * value for value in range(50)]
    pool.shutdown()
    pool.shutdown()
    with pytest.raises(PoolClosed):
        pool.map(pool_tasks.double, [1])


def test_shutdown_can_cancel_what_waits(in_machine: Machine, tmp_path: Path) -> None:
    pool = gpulease.Pool(gpus=1)
    go, mark = str(tmp_path / "go"), str(tmp_path / "mark")
    running = pool.submit(pool_tasks.mark_and_wait, mark, go)
    pool_tasks.wait_for(mark)
    waiting = [pool.submit(pool_tasks.double, value) for value in range(10)]
    pool.shutdown(wait=False, cancel_futures=True)
    Path(go).touch()
    pool.shutdown()
    assert running.result(0)
    assert all(future.cancelled() for future in waiting)


def test_shutdown_that_cancels_lets_the_workers_that_start_finish_one_item_each(in_machine: Machine) -> None:
    """As of the standard library's: of many that were submitted at once, some run and most do not."""
    pool = gpulease.Pool(gpus=2)
    futures = [pool.submit(pool_tasks.double, value) for value in range(50)]
    pool.shutdown(cancel_futures=True)
    assert all(future.done() for future in futures)
    done = [future.result(0) for future in futures if not future.cancelled()]
    assert 1 <= len(done) <= 2
    assert done == [0, 2][: len(done)]


def test_shutdown_that_cancels_does_not_wait_in_the_line(in_machine: Machine) -> None:
    with in_machine.occupied("0,1,2,3"):
        pool = gpulease.Pool(gpus=1)
        future = pool.submit(pool_tasks.double, 1)
        pool.shutdown(cancel_futures=True)
        assert future.cancelled()


def test_cancelling_says_that_the_rest_of_the_input_is_missing(in_machine: Machine, tmp_path: Path) -> None:
    pool = gpulease.Pool(gpus=1)
    go, mark = str(tmp_path / "go"), str(tmp_path / "mark")
    results = pool.map(pool_tasks.mark_and_wait, [mark] * 3000, [go] * 3000, return_errors=True)
    pool_tasks.wait_for(mark)
    pool.shutdown(wait=False, cancel_futures=True)
    Path(go).touch()
    pool.shutdown()
    seen = [next(results) for _ in range(1024)]
    assert isinstance(seen[0], int)
    assert isinstance(seen[-1], CancelledError)
    with pytest.raises(CancelledError):
        next(results)
    assert list(results) == []


def test_terminate_ends_a_loop_whose_input_hangs(in_machine: Machine) -> None:
    pool = gpulease.Pool(gpus=1)
    hang = threading.Event()

    def hanging() -> Iterator[int]:
        yield 1
        hang.wait()

    results = pool.map(pool_tasks.double, hanging())
    assert next(results) == 2
    threading.Timer(0.1, pool.terminate).start()
    with pytest.raises(PoolClosed):
        next(results)
    hang.set()


def test_a_forgotten_pool_finishes_its_work_and_ends(in_machine: Machine) -> None:
    pool = gpulease.Pool(gpus=1)
    thread = pool._engine.reactor.thread
    future = pool.submit(pool_tasks.double, 21)
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
    assert future.result(30) == 42
    thread.join(30)
    assert not thread.is_alive()


def test_a_dropped_result_is_not_kept(pool: gpulease.Pool) -> None:
    future = pool.submit(set, [1, 2])
    kept = weakref.ref(future.result(30))
    del future
    until = time.monotonic() + 10
    while kept() is not None and time.monotonic() < until:
        pool.submit(pool_tasks.pid).result(30)
        gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"gpus": "some"}, "all-idle"),
        ({"gpus": 3, "gpus_per_worker": 2}, "multiple"),
        ({"retries": -1}, "retries"),
        ({"shared": {1: 2}}, "names as keys"),
        ({"engine": "slurm"}, "engine"),
        ({"mem": "6G", "gpus_per_worker": 2, "gpus": 2}, "one GPU"),
        ({"init": 3}, "init"),
        ({"mem": "6 apples"}, "not an amount of memory"),
        ({"min_memory": [1]}, "min_memory"),
        ({"model": 3.5}, "model is 3.5"),
        ({"priority": "x"}, "priority"),
        ({"note": 3}, "note"),
        ({"results": "/etc/passwd"}, "not a folder"),
        ({"results": 3}, "results is 3"),
        ({"log": "/tmp"}, "log"),
        ({"init": pool_tasks.double, "initargs": 3}, "initargs"),
        ({"shared": [1, 2]}, "names as keys"),
        ({"max_workers": 3}, "gpus="),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        gpulease.Pool(**options)  # type: ignore[arg-type]


def test_more_gpus_than_the_machine_has_are_refused_at_once(in_machine: Machine) -> None:
    with pytest.raises(NotEnoughDevices, match="asks for 5 GPUs, and this machine has 4"):
        gpulease.Pool(gpus=5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": "7"}, "'7' is not a device here"),
        ({"model": "H100"}, "of the 4 here 0 fit"),
        ({"min_memory": "900G"}, "of the 4 here 0 fit"),
        ({"exclude": "0,1,2,3"}, "of the 4 here 0 fit"),
        ({"gpus": "all-idle", "exclude": "0,1,2,3"}, "of the 4 here 0 fit"),
        ({"gpus": 3, "devices": "0,1"}, "asks for 3 GPUs, and of the 4 here 2 fit"),
        ({"gpus": 8, "mem": "60G"}, "8 shares of 60.0G, and 4 fit"),
        ({"mem": "100G"}, "1 share of 100G, and none fit"),
    ],
)
def test_what_no_worker_could_ever_get_is_refused_at_once(
    in_machine: Machine, options: dict[str, object], words: str
) -> None:
    with pytest.raises((NotEnoughDevices, UnknownDevice), match=words):
        gpulease.Pool(**options)  # type: ignore[arg-type]


def test_map_of_nothing_is_refused(pool: gpulease.Pool) -> None:
    with pytest.raises(UsageError, match="iterable"):
        pool.map(pool_tasks.double)
    with pytest.raises(UsageError, match="timeout is '3'"):
        pool.map(pool_tasks.double, [1], timeout="3")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="not a function"):
        pool.submit(3)  # type: ignore[arg-type]
