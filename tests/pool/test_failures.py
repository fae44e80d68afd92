"""Failure is local: an exception, a dead worker, a poisonous item, a bad `init` cost no other item."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import pool_tasks
from support.machine import Machine
from support.waiting import wait_until

import gpulease
from gpulease.errors import CannotPickle, NotEnoughDevices, OutOfMemory, PoolBroken, PoolClosed, TaskFailed, WorkerDied


@pytest.fixture
def pool(in_machine: Machine) -> Iterator[gpulease.Pool]:
    with gpulease.Pool(gpus=2) as pool:
        yield pool


def test_an_exception_is_the_tasks_own_with_the_workers_traceback(pool: gpulease.Pool) -> None:
    with pytest.raises(ValueError, match="no 3") as caught:
        pool.submit(pool_tasks.fail, 3).result(30)
    assert 'raise ValueError(f"no {value}")' in str(caught.value.__cause__)


def test_map_goes_on_behind_an_item_that_failed(pool: gpulease.Pool) -> None:
    results = pool.map(pool_tasks.fail_odd, range(6))
    seen: list[int | str] = []
    for _ in range(6):
        try:
            seen.append(next(results))
        except ValueError as error:
            seen.append(str(error))
    assert seen == [0, "odd 1", 2, "odd 3", 4, "odd 5"]
    kept = list(pool.map(pool_tasks.fail_odd, range(4), return_errors=True))
    assert [type(value) for value in kept] == [int, ValueError, int, ValueError]


def test_an_error_that_cannot_be_rebuilt_here_is_told_in_words(pool: gpulease.Pool) -> None:
    with pytest.raises(TaskFailed, match=r"Unloadable: 1 2\. The worker's"):
        pool.submit(pool_tasks.raise_unloadable).result(30)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, ValueError])
def test_a_result_that_raises_when_it_is_read_here_fails_alone(pool: gpulease.Pool, kind: type[BaseException]) -> None:
    with pytest.raises(TaskFailed, match=rf"cannot be read here: {kind.__name__}"):
        pool.submit(pool_tasks.RaisesWhenRead, kind).result(30)
    kept = list(pool.map(pool_tasks.RaisesWhenRead, [kind] * 2, return_errors=True))
    assert [type(error) for error in kept] == [TaskFailed] * 2
    assert pool.submit(pool_tasks.double, 2).result(30) == 4


def test_an_error_that_raises_when_it_is_read_here_is_told_in_words(pool: gpulease.Pool) -> None:
    with pytest.raises(TaskFailed, match="ErrorThatExits"):
        pool.submit(pool_tasks.raise_error_that_exits).result(30)


def test_a_callback_that_exits_does_not_stop_the_pool(pool: gpulease.Pool) -> None:
    pool.submit(pool_tasks.double, 1).add_done_callback(lambda future: sys.exit(3))
    assert [pool.submit(pool_tasks.double, value).result(30) for value in range(5)] == [0, 2, 4, 6, 8]


def test_nor_when_it_is_the_last_thing_that_the_pool_waits_for(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=2) as pool:
        future = pool.submit(pool_tasks.double, 1)
        future.add_done_callback(lambda future: sys.exit(3))
    assert future.result(0) == 2


def test_out_of_memory_on_the_device_is_told_apart(pool: gpulease.Pool) -> None:
    with pytest.raises(OutOfMemory, match="CUDA out of memory") as caught:
        pool.submit(pool_tasks.out_of_memory).result(30)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(OutOfMemory, match=r"The machine's own memory, not a GPU's, ran out .*: MemoryError\. "):
        pool.submit(pool_tasks.host_out_of_memory).result(30)
    assert pool.submit(pool_tasks.double, 2).result(30) == 4


def test_a_dead_worker_costs_one_try_and_its_gpu_is_used_again(pool: gpulease.Pool, tmp_path: Path) -> None:
    assert pool.submit(pool_tasks.die_once, str(tmp_path / "mark"), 7).result(30) == 7
    assert list(pool.map(pool_tasks.double, range(100))) == [2 * value for value in range(100)]


@pytest.mark.parametrize(
    ("function", "argument", "words"),
    [(pool_tasks.die, signal.SIGSEGV, "SIGSEGV"), (pool_tasks.leave, 7, "exit code 7")],
)
def test_how_a_worker_ended_is_named(in_machine: Machine, function: object, argument: int, words: str) -> None:
    with gpulease.Pool(gpus=1, retries=0) as pool:
        with pytest.raises(WorkerDied, match=words) as caught:
            pool.submit(function, int(argument)).result(30)  # type: ignore[arg-type]
        assert caught.value.fields["tries"] == 1
        assert pool.submit(pool_tasks.double, 2).result(30) == 4


def test_an_item_that_kills_three_workers_fails_alone(pool: gpulease.Pool, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    poison = pool.submit(pool_tasks.die_and_count, str(marks))
    others = [pool.submit(pool_tasks.double, value) for value in range(200)]
    with pytest.raises(WorkerDied, match="SIGKILL") as caught:
        poison.result(60)
    assert marks.read_text() == "xxx"
    assert caught.value.fields["signal"] == signal.SIGKILL
    assert [future.result(60) for future in others] == [2 * value for value in range(200)]


def test_the_last_try_is_in_a_worker_that_has_done_nothing(pool: gpulease.Pool, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.touch()
    while len(pool.gpus) < 2:
        pool.submit(pool_tasks.count_in_process, 1).result(30)
    list(pool.map(pool_tasks.count_in_process, range(200)))
    assert pool.submit(pool_tasks.die_twice, str(marks)).result(30) == 0


@pytest.mark.parametrize(("retries", "tries"), [(0, 1), (1, 3)])
def test_a_death_costs_a_try_of_the_one_item_that_ran(
    in_machine: Machine, tmp_path: Path, retries: int, tries: int
) -> None:
    """Short items travel many at a time; those before and behind the one that kills run once, and count."""
    with gpulease.Pool(gpus=2, retries=retries) as pool:
        list(pool.map(pool_tasks.mark_and_maybe_die, [str(tmp_path)] * 200, range(2001, 2201), [10_000] * 200))
        arguments = [str(tmp_path)] * 1000, range(1, 1001), [200] * 1000
        results = list(pool.map(pool_tasks.mark_and_maybe_die, *arguments, return_errors=True))
    killers = {200, 400, 600, 800, 1000}
    failed = {value for value, result in zip(range(1, 1001), results, strict=True) if result != value}
    assert failed == killers
    runs = {value: len((tmp_path / str(value)).read_text()) for value in range(1, 1001)}
    assert {value: count for value, count in runs.items() if count != 1} == dict.fromkeys(
        killers if tries > 1 else (), tries
    )


def test_workers_killed_at_random_lose_nothing(in_machine: Machine) -> None:
    """Two thousand items, in whichever order workers die: every result once, right, in order."""
    with gpulease.Pool(gpus=2, retries=20) as pool:
        stop = threading.Event()
        killed = threading.Thread(target=_kill_workers, args=(pool, stop))
        killed.start()
        results = list(pool.map(_slow_square, range(2000)))
        stop.set()
        killed.join(30)
    assert results == [value * value for value in range(2000)]


def _slow_square(value: int) -> int:
    import time

    time.sleep(0.0005)
    return value * value


def _kill_workers(pool: gpulease.Pool, stop: threading.Event) -> None:
    import random

    chance, kills = random.Random(6), 0
    while kills < 20 and not stop.wait(chance.uniform(0.01, 0.1)):
        slots = pool._engine.source.slots  # type: ignore[attr-defined]
        slot = chance.choice(slots)
        if slot.state == "ready" and slot.process is not None:
            slot.process.kill()
            kills += 1


def test_a_worker_whose_lease_was_released_by_hand_asks_anew(in_machine: Machine, tmp_path: Path) -> None:
    go, mark = str(tmp_path / "go"), str(tmp_path / "mark")
    with gpulease.Pool(gpus=1) as pool:
        lease = pool.submit(pool_tasks.who).result(30).lease
        running = pool.submit(pool_tasks.mark_and_wait, mark, go)
        pool_tasks.wait_for(mark)
        assert in_machine.run("release", lease).returncode == 0
        until = time.monotonic() + 20
        while pool._engine.source.slots[0].state == "ready":  # type: ignore[attr-defined]
            assert time.monotonic() < until
            time.sleep(0.01)
        Path(go).touch()
        first = running.result(30)  # what ran is finished
        current = pool.submit(pool_tasks.who).result(30)
        assert current.lease != lease
        assert pool.submit(pool_tasks.pid).result(30) != first
        assert [each["id"] for each in in_machine.json("status")["leases"]] == [current.lease]


def test_init_that_always_fails_is_one_clear_error(in_machine: Machine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with gpulease.Pool(gpus=2, init=pool_tasks.initialise_badly_later, initargs=(str(go),)) as pool:
        futures = [pool.submit(pool_tasks.double, value) for value in range(3)]
        go.touch()
        for future in futures:
            with pytest.raises(PoolBroken, match="no model here"):
                future.result(30)
        with pytest.raises(PoolBroken, match="no model here"):
            pool.submit(pool_tasks.double, 1)


def test_the_traceback_of_init_is_in_the_log_alone(
    in_machine: Machine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for log in (None, tmp_path / "pool.log"):
        with (
            gpulease.Pool(gpus=1, init=pool_tasks.initialise_badly, log=log) as pool,
            pytest.raises(PoolBroken) as caught,
        ):
            pool.submit(pool_tasks.double, 1).result(60)
        assert "Traceback" in str(caught.value.__cause__)
    assert "no model here" in caplog.text
    assert "Traceback" not in caplog.text
    assert "Traceback" in (tmp_path / "pool.log").read_text()
    assert "from outside" not in caplog.text + (tmp_path / "pool.log").read_text()  # nobody ended its lease


def test_init_that_kills_its_worker_is_not_tried_for_ever(in_machine: Machine) -> None:
    with (
        gpulease.Pool(gpus=1, init=pool_tasks.die, initargs=(9,)) as pool,
        pytest.raises(PoolBroken, match=r"3 times in a row.*SIGKILL"),
    ):
        pool.submit(pool_tasks.double, 1).result(60)


def test_a_worker_that_dies_once_it_is_ready_is_started_again_less_and_less_often(
    in_machine: Machine, tmp_path: Path
) -> None:
    log = tmp_path / "pool.log"
    with gpulease.Pool(gpus=1, init=pool_tasks.die_soon, log=log):
        wait_until(lambda: "starts again in 0.4 s" in log.read_text())
    pauses = [line.split()[-2] for line in log.read_text().splitlines() if "starts again" in line]
    assert pauses[:3] == ["0.1", "0.2", "0.4"]
    assert log.read_text().count("worker 1 starts (pid") < 10


def test_what_cannot_be_pickled_is_named(pool: gpulease.Pool) -> None:
    lock = threading.Lock()
    with pytest.raises(CannotPickle, match=r"its variable 'lock'.*cannot pickle '_thread.lock'"):
        pool.submit(lambda: lock)
    with pytest.raises(CannotPickle, match="Argument 1 of double, key 'inner'"):
        pool.submit(pool_tasks.double, {"inner": lock})  # type: ignore[arg-type]
    with pytest.raises(CannotPickle, match="Argument 'right' of add"):
        pool.submit(pool_tasks.add, 1, right=lock)  # type: ignore[arg-type]
    with pytest.raises(CannotPickle, match="a pool cannot be sent to its own workers"):
        pool.submit(lambda: pool.gpus)
    with pytest.raises(CannotPickle, match="result"):
        pool.submit(threading.Lock).result(30)
    with pytest.raises(CannotPickle, match="key 'handle'"):
        gpulease.Pool(shared={"handle": lock})


def test_a_nested_pool_divides_its_workers_gpus(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=4, gpus_per_worker=2) as pool:
        assert pool.submit(pool_tasks.nested, 2).result(60) == [0, 2, 4, 6, 8]
        with pytest.raises(NotEnoughDevices, match="the worker has 2"):
            pool.submit(pool_tasks.nested, 3).result(60)
        before, after = pool.submit(pool_tasks.nested_death).result(60)
        assert before == after  # the worker that follows has the same GPU, and no lease of its own


def test_terminate_fails_what_a_worker_has_and_has_not_begun(in_machine: Machine) -> None:
    """Before, these went back into the queue, and whoever waited for one waited for ever."""
    pool = gpulease.Pool(gpus=1)
    quick = list(pool.map(time.sleep, [0] * 3))
    futures = [pool.submit(time.sleep, 600) for _ in range(3)]
    pool.terminate()
    assert quick == [None] * 3
    assert [type(future.exception(30)) for future in futures] == [PoolClosed] * 3


def test_terminate_ends_what_runs(in_machine: Machine, tmp_path: Path) -> None:
    pool = gpulease.Pool(gpus=1)
    mark = str(tmp_path / "mark")
    future = pool.submit(pool_tasks.mark_and_wait, mark, str(tmp_path / "never"))
    pool_tasks.wait_for(mark)
    pool.terminate()
    with pytest.raises(PoolClosed):
        future.result(0)


PARENT = """
import sys, time, gpulease
from support import pool_tasks
pool = gpulease.Pool(gpus=2)
pids = [pool.submit(pool_tasks.pid).result(30)]
busy = pool.submit(pool_tasks.mark_and_wait, sys.argv[1], sys.argv[1] + ".never")
pool_tasks.wait_for(sys.argv[1])
while not all(slot.process for slot in pool._engine.source.slots): time.sleep(0.01)
print(*[slot.process.pid for slot in pool._engine.source.slots], flush=True)
sys.stdin.read()
"""


def test_workers_end_with_a_killed_parent_even_in_a_long_call(machine: Machine, tmp_path: Path) -> None:
    path = f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "mark")],
        env={**machine.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout
    pidfds = [os.pidfd_open(int(word)) for word in parent.stdout.readline().split()]
    assert len(pidfds) == 2
    parent.kill()
    parent.wait()
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 40)[0], "a worker outlived its parent"
        os.close(pidfd)


CHILDREN = """
import subprocess, sys, gpulease
def start():
    child = subprocess.Popen(["sleep", "600"])
    return child.pid
pool = gpulease.Pool(gpus=1)
print(pool.submit(start).result(30), flush=True)
sys.stdin.read()
if sys.argv[1] == "shutdown":
    pool.shutdown()
"""


@pytest.mark.parametrize("ending", ["kill", "shutdown"])
def test_what_a_worker_started_ends_with_it(machine: Machine, ending: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", CHILDREN, ending],
        env=machine.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdin
    assert parent.stdout
    child = os.pidfd_open(int(parent.stdout.readline()))
    if ending == "kill":
        parent.kill()
    parent.stdin.close()
    parent.wait(30)
    assert select.select([child], [], [], 20)[0], "a child outlived its worker"
    os.close(child)


FORKS = """
import multiprocessing, gpulease
from concurrent.futures import ProcessPoolExecutor
from support import pool_tasks
with gpulease.Pool(gpus=2) as pool:
    other = multiprocessing.get_context("fork").Pool(2)  # while the workers start
    assert list(pool.map(pool_tasks.double, range(10))) == list(other.map(pool_tasks.double, range(10)))
    other.terminate()
with ProcessPoolExecutor(2) as other:
    assert list(other.map(pool_tasks.double, range(3))) == [0, 2, 4]
print("ok")
"""


@pytest.mark.timeout(400)
def test_a_program_may_fork_while_workers_start_and_after_a_pool(machine: Machine) -> None:
    path = f"{Path(__file__).parents[1]}:{os.environ.get('PYTHONPATH', '')}"
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", FORKS],
            env={**machine.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.stdout == "ok\n", done.stderr
