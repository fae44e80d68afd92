"""Named pools keep workers warm between programs of one user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from support import pool_tasks
from support.machine import Machine

import gpulease
from gpulease.errors import NotFound, PoolClosed, WorkerDied

TESTS = str(Path(__file__).parents[1])


@pytest.fixture
def started(in_machine: Machine, tmp_path: Path) -> Iterator[Machine]:
    numpy.savez(tmp_path / "data.npz", array=numpy.arange(100_000.0))
    (tmp_path / "warm.py").write_text("import os\ndef load():\n    print('loaded')\n    return os.getpid()\n")
    in_machine.environ["PYTHONPATH"] = f"{tmp_path}:{TESTS}:{os.environ.get('PYTHONPATH', '')}"
    shared = str(tmp_path / "data.npz")
    done = in_machine.run("pool", "start", "sums", "--gpus", "2", "--init", "warm:load", "--shared", shared)
    try:
        assert done.returncode == 0, done.stderr
        assert done.stdout == "sums: 2 ready\n"
        yield in_machine
    finally:
        in_machine.run("pool", "stop", "sums")


def test_a_second_program_finds_the_same_warm_workers(started: Machine) -> None:
    program = "import gpulease; from support import pool_tasks as t\n"
    program += "with gpulease.Pool.connect('sums') as pool: print(*sorted(set(pool.map(t.state_after, range(60)))))"
    runs = [
        subprocess.run([sys.executable, "-c", program], env=started.environ, capture_output=True, text=True, timeout=60)
        for _ in range(2)
    ]
    pids = {str(worker["pid"]) for worker in started.json("pool", "ls")["pools"][0]["workers"]}
    for run in runs:
        assert run.returncode == 0, run.stderr
        assert run.stdout.split()
        assert set(run.stdout.split()) <= pids


def test_it_is_used_like_any_pool(started: Machine) -> None:
    with gpulease.Pool.connect("sums") as pool, gpulease.Pool.connect("sums") as other:
        mixed = zip(
            pool.map(pool_tasks.double, range(500)), other.map(pool_tasks.double, range(500, 1000)), strict=True
        )
        assert list(mixed) == [(2 * value, 2 * (value + 500)) for value in range(500)]
        assert pool.submit(pool_tasks.shared_sum, "array").result(30) == numpy.arange(100_000.0).sum()
        with pytest.raises(ValueError, match="no 3"):
            pool.submit(pool_tasks.fail, 3).result(30)
    row = started.run("pool", "ls").stdout.splitlines()[1]
    assert row.split()[0] == "sums"
    assert "2/2" in row


def test_a_dead_worker_is_replaced_and_the_new_one_is_used(started: Machine, tmp_path: Path) -> None:
    with gpulease.Pool.connect("sums", retries=0) as pool:
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            pool.submit(pool_tasks.die, int(signal.SIGSEGV)).result(30)
        go = str(tmp_path / "go")
        marks = [str(tmp_path / f"mark{number}") for number in range(2)]
        both = [pool.submit(pool_tasks.mark_and_wait, mark, go) for mark in marks]
        for mark in marks:
            pool_tasks.wait_for(mark)  # both run at once, so the second one on the worker that is new
        Path(go).touch()
        assert len({future.result(30) for future in both}) == 2
    assert "loaded" in started.run("pool", "log", "sums").stdout


def test_a_death_costs_only_the_item_that_ran_here_too(started: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    with gpulease.Pool.connect("sums", retries=0) as pool:
        arguments = [str(folder)] * 400, range(1, 401), [100] * 400
        results = list(pool.map(pool_tasks.mark_and_maybe_die, *arguments, return_errors=True))
    assert [value for value, result in enumerate(results, 1) if result != value] == [100, 200, 300, 400]
    assert {path.read_text() for path in folder.iterdir()} == {"x"}


def test_a_stopped_pool_fails_what_is_left_and_leaves_nothing(started: Machine, tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    with gpulease.Pool.connect("sums") as pool:
        running = pool.submit(pool_tasks.mark_and_wait, mark, str(tmp_path / "go"))
        pool_tasks.wait_for(mark)
        pid = started.json("pool", "ls")["pools"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PoolClosed, match="ended unexpectedly"):
            running.result(30)
        with pytest.raises(PoolClosed):
            pool.submit(pool_tasks.double, 1)
    assert started.json("pool", "ls")["pools"] == []
    deadline = time.monotonic() + 20
    while started.json("status")["leases"]:
        assert time.monotonic() < deadline


def test_stop_waits_for_what_runs_and_now_does_not(started: Machine, tmp_path: Path) -> None:
    go, mark = str(tmp_path / "go"), str(tmp_path / "mark")
    with gpulease.Pool.connect("sums") as pool:
        running = pool.submit(pool_tasks.mark_and_wait, mark, go)
        pool_tasks.wait_for(mark)
        never = pool.submit(pool_tasks.mark_and_wait, str(tmp_path / "other"), str(tmp_path / "never"))
        stopping = subprocess.Popen(started.words("pool", "stop", "sums"), env=started.environ)
        Path(go).touch()
        assert running.result(30)
        assert started.run("pool", "stop", "--now", "sums").returncode in (0, 1)  # 1: it was gone already
        with pytest.raises(PoolClosed, match="was stopped"):
            never.result(30)
    assert stopping.wait(30) in (0, 1)  # whichever of the two came first ended it


def test_what_is_wrong_is_said(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words, code, text in [
        (("start", "../x"), 2, "is not a valid name"),
        (("start", "x", "--init", "nothing"), 2, "module:function"),
        (("start", "x", "--init", "nowhere:f"), 1, "nowhere"),
        (("start", "x", "--shared", str(tmp_path / "none.npz")), 2, "cannot be read"),
        (("start", "x", "--gpus", "3", "--gpus-per-worker", "2"), 2, "multiple"),
        (("stop", "x"), 1, "no pool 'x'"),
        (("log", "y"), 1, "no log"),
        (("log", "y", "--lines", "0"), 2, "--lines"),
        (("log", "y", "--lines", "-1"), 2, "--lines"),
        (("start", "x", "--gpus", "some"), 2, "--gpus"),
        (("start", "x", "--devices", "7"), 2, "not a device"),
        ((), 2, "required"),
    ]:
        done = machine.run("pool", *words)
        assert done.returncode == code, done
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert machine.run("pool", "ls").stdout == "no pools\n"
    monkeypatch.setenv("GPULEASE_DIR", machine.environ["GPULEASE_DIR"])
    with pytest.raises(NotFound, match=r"no pool 'z'\. Start it: `gpulease pool start z --gpus N`"):
        gpulease.Pool.connect("z")


def test_it_may_keep_whatever_is_idle_warm_and_give_it_back(in_machine: Machine) -> None:
    with in_machine.occupied("3"):
        assert in_machine.run("pool", "start", "idle", "--gpus", "all-idle").returncode == 0
        try:
            with gpulease.Pool.connect("idle") as pool:
                deadline = time.monotonic() + 30
                while len(pool.gpus) < 3:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                assert in_machine.run("run", "-n", "2", "--", "true").returncode == 0
                assert pool.submit(abs, -2).result(30) == 2
        finally:
            in_machine.run("pool", "stop", "idle")


def test_the_log_is_for_its_user_alone(started: Machine) -> None:
    log = Path(started.environ["GPULEASE_DIR"]) / "pools" / "sums.log"
    assert log.stat().st_mode & 0o777 == 0o600


def test_of_many_that_start_one_name_at_once_one_wins(machine: Machine) -> None:
    words = machine.words("pool", "start", "one", "--gpus", "1")
    starting = [
        subprocess.Popen(words, env=machine.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        reply = [process.communicate(timeout=60) for process in starting]
        assert sorted(process.returncode for process in starting) == [0, 2, 2, 2]
        assert sum("already running" in errors for _, errors in reply) == 3
        assert len(machine.json("status")["leases"]) == 1
    finally:
        machine.run("pool", "stop", "one")
    assert machine.run("pool", "start", "one").returncode == 0  # at once after the stop
    machine.run("pool", "stop", "one")


def test_a_pool_of_that_name_is_not_started_twice(started: Machine) -> None:
    done = started.run("pool", "start", "sums")
    assert done.returncode == 2
    assert "already running" in done.stderr


def test_a_pool_whose_process_is_stopped_is_named_and_hides_no_other(started: Machine) -> None:
    pid = started.json("pool", "ls")["pools"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        words = [started.words("pool", "ls"), started.words("pool", "stop", "sums")]
        pipe = subprocess.PIPE
        asked = [subprocess.Popen(each, env=started.environ, stdout=pipe, stderr=pipe, text=True) for each in words]
        reply = [(*process.communicate(timeout=60), process.returncode) for process in asked]
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [code for *_, code in reply] == [0, 1]
    for _, error, _ in reply:
        assert f"process {pid}, does not answer" in error
        assert "Traceback" not in error
