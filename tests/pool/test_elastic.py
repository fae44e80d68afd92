"""`gpus="all-idle"` takes what is free, and gives back when others wait."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

from support.machine import Machine

import gpulease


def until(pool: gpulease.Pool, count: int) -> None:
    deadline = time.monotonic() + 30
    while len(pool.gpus) != count:
        assert time.monotonic() < deadline, pool.gpus
        time.sleep(0.02)


def endless() -> Iterator[int]:
    value = 0
    while True:
        yield value
        value += 1


def work(value: int) -> int:
    time.sleep(0.02)
    return value


def test_it_grows_to_what_is_idle_and_shrinks_for_others(in_machine: Machine) -> None:
    with in_machine.occupied("3"), gpulease.Pool(gpus="all-idle") as pool:
        results = pool.map(work, endless())
        assert next(results) == 0
        until(pool, 3)
        words = in_machine.words("run", "-n", "2", "--", "true")
        others = subprocess.Popen(words, env=in_machine.environ, stderr=subprocess.DEVNULL)
        for expected, value in zip(range(1, 5000), results, strict=False):
            assert value == expected
            if others.poll() is not None:
                break
        assert others.wait(10) == 0  # it was served while the pool still had work
        until(pool, 3)
        results.close()
