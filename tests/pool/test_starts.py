"""Where an item runs is known: by its future, and by a hook when it starts; a worker can be worn out."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support import pool_tasks
from support.machine import Machine
from support.waiting import wait_until

import gpulease
from gpulease.errors import UsageError


def test_a_future_knows_its_worker_and_gpu_once_it_runs(in_machine: Machine, tmp_path: Path) -> None:
    go, marks = str(tmp_path / "go"), [str(tmp_path / str(number)) for number in range(2)]
    with gpulease.Pool(gpus=2, devices=[1, 3]) as pool:
        running = [pool.submit(pool_tasks.mark_and_wait, mark, go) for mark in marks]
        for mark in marks:
            pool_tasks.wait_for(mark)
        waiting = pool.submit(pool_tasks.who)
        assert (waiting.worker, waiting.device, waiting.gpus) == (None, None, None)
        assert {(future.worker, future.device) for future in running} <= {
            (worker, device) for worker in ("worker 1", "worker 2") for device in (1, 3)
        }
        assert {future.device for future in running} == {1, 3}
        Path(go).touch()
        reply = waiting.result(30)
        assert (waiting.worker, waiting.gpus, str(waiting.device)) == (reply.name, reply.gpus, reply.gpus)


def test_a_worker_of_several_gpus_is_named_by_its_first(in_machine: Machine) -> None:
    with gpulease.Pool(gpus=2, gpus_per_worker=2, devices=[1, 2]) as pool:
        future = pool.submit(pool_tasks.own_gpu)
        assert future.result(30)[0] == "1,2"
        assert (future.device, future.gpus) == (1, "1,2")


def test_an_item_that_ended_its_worker_moves_to_another(in_machine: Machine, tmp_path: Path) -> None:
    starts: list[Any] = []
    with gpulease.Pool(gpus=1, on_start=starts.append) as pool:
        future = pool.submit(pool_tasks.die_once, str(tmp_path / "mark"), 7)
        assert future.result(30) == 7
    assert [start.arguments[1] for start in starts] == [7, 7]  # each try is a start
    assert {start.future for start in starts} == {future}


def test_the_hook_hears_of_each_item_before_it_is_done_and_where_it_runs(in_machine: Machine) -> None:
    starts: list[Any] = []
    done: list[bool] = []

    def started(start: Any) -> None:
        starts.append(start)
        done.append(start.future.done())

    with gpulease.Pool(gpus=2, on_start=started) as pool:
        assert list(pool.map(pool_tasks.double, range(500))) == [2 * value for value in range(500)]
        futures = [pool.submit(pool_tasks.who) for _ in range(20)]
        reply = {future: future.result(30) for future in futures}
    assert sorted(start.arguments[0] for start in starts if start.function == "double") == list(range(500))
    assert not any(done)
    of_futures = [start for start in starts if start.function == "who"]
    assert len(of_futures) == 20
    for start in of_futures:
        assert (start.worker, start.gpus) == (reply[start.future].name, reply[start.future].gpus)
        assert str(start.device) == start.gpus
    assert sorted(start.number for start in starts) == list(range(1, 521))


def test_the_hook_hears_of_a_start_while_the_item_runs(in_machine: Machine, tmp_path: Path) -> None:
    heard = threading.Event()
    with gpulease.Pool(gpus=1, on_start=lambda start: heard.set()) as pool:
        future = pool.submit(pool_tasks.wait_for, str(tmp_path / "go"))
        assert heard.wait(30)
        assert not future.done()
        (tmp_path / "go").touch()
        future.result(30)


def test_a_hook_that_raises_costs_nothing_but_a_line_in_the_log(
    in_machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    with gpulease.Pool(gpus=1, on_start=pool_tasks.fail) as pool:
        assert list(pool.map(pool_tasks.double, range(5))) == [0, 2, 4, 6, 8]
    assert caplog.text.count("on_start failed") == 5


def test_a_worker_is_replaced_after_so_many_items(in_machine: Machine, tmp_path: Path) -> None:
    log = tmp_path / "pool.log"
    with gpulease.Pool(gpus=2, max_items=4, init=os.getpid, log=log) as pool:
        reply = list(pool.map(pool_tasks.pid_and_count, range(30)))
        assert pool.submit(pool_tasks.state).result(30)  # `init` ran in the new ones too
    counts = [count for _, count in reply]
    assert len(reply) == 30
    assert max(counts) == 4
    assert len({pid for pid, _ in reply}) >= 30 / 4
    text = log.read_text()
    assert "has done 4 items and is replaced" in text
    assert "ended with exit code" not in text  # a planned end is none


def test_max_items_holds_for_each_worker_of_a_named_pool_whoever_uses_it(in_machine: Machine) -> None:
    in_machine.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    done = in_machine.run("pool", "start", "worn", "--max-items", "3")
    assert done.returncode == 0, done.stderr
    try:
        with gpulease.Pool.connect("worn") as one, gpulease.Pool.connect("worn") as other:
            both = zip(
                one.map(pool_tasks.pid_and_count, range(7)), other.map(pool_tasks.pid_and_count, range(7)), strict=True
            )
            reply = [each for pair in both for each in pair]
        by_pid = {pid: [count for each, count in reply if each == pid] for pid, _ in reply}
        assert all(sorted(counts) == list(range(1, len(counts) + 1)) for counts in by_pid.values())
        assert sorted(map(len, by_pid.values())) == [2, 3, 3, 3, 3]
        wait_until(lambda: in_machine.json("pool", "ls")["pools"][0]["workers"][0]["state"] == "ready")
    finally:
        in_machine.run("pool", "stop", "worn")


@pytest.mark.parametrize("given", [{"max_items": 0}, {"max_items": True}, {"max_items": "3"}, {"on_start": 3}])
def test_what_makes_no_sense_is_said(in_machine: Machine, given: Any) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        gpulease.Pool(**given)
