"""Leases beside Redis: acquire and release, hand-off to a process that waits, `get` and `release` in a shell.

    python bench/leases.py [--rounds N] [--pairs N]

Redis stands for what gpuget does: BRPOP takes a GPU, LPUSH gives it back. A real redis-server is started and
stopped again. gpulease does more in the same call: a commit to disk, a plan, a look at the device.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import multiprocessing
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from interleaved import command, compile_everything, interleave, own_command, show
from report import Report, Size, bench
from scratch import scratch

REDIS = "redis BRPOP/LPUSH"
SETTLE = 0.002  # seconds after which whoever announced a wait really waits


@contextmanager
def redis_server() -> Iterator[int]:
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("This bench needs redis-server (Debian: apt-get install redis-server).")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        _until(lambda: socket.create_connection(("127.0.0.1", port), 1).close())
        yield port
    finally:
        server.terminate()
        server.wait()


def _until(attempt: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while True:
        try:
            attempt()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class Redis:
    """The one GPU is an element of a list."""

    def __init__(self, port: int) -> None:
        import redis

        self._client = redis.Redis(port=port)

    def prepare(self) -> None:
        self._client.delete("idle")
        self._client.lpush("idle", "0")

    def take(self) -> None:
        self._client.brpop(["idle"])

    def give(self) -> None:
        self._client.lpush("idle", "0")


class Gpulease:
    def prepare(self) -> None:
        pass

    def take(self) -> None:
        import gpulease

        self._lease = gpulease.acquire()

    def give(self) -> None:
        self._lease.release()


def _waiter(make: Callable[[], Any], pipe: Connection) -> None:
    """Takes whenever told to, says when it had it, and gives back."""
    side = make()
    while pipe.recv():
        pipe.send("waits")
        side.take()
        pipe.send(time.perf_counter())
        side.give()
        pipe.send("gave")


class HandOff:
    """This process holds; another waits; how long from the release here to the grant there."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._side = make()
        self._side.prepare()
        self._pipe, theirs = multiprocessing.Pipe()
        self._other = multiprocessing.get_context("fork").Process(target=_waiter, args=(make, theirs), daemon=True)
        self._other.start()

    def round(self) -> float:
        self._side.take()
        self._pipe.send(True)
        self._pipe.recv()
        time.sleep(SETTLE)
        begin = time.perf_counter()
        self._side.give()
        end: float = self._pipe.recv()
        self._pipe.recv()
        return end - begin

    def close(self) -> None:
        self._pipe.send(False)
        self._other.join()


def hand_off(makers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    sides = {name: HandOff(make) for name, make in makers.items()}
    for side in sides.values():
        side.round()
    timings: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            timings[name].append(side.round())
    for side in sides.values():
        side.close()
    return timings


def acquire_and_release(makers: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    def pair(side: Any) -> Callable[[], None]:
        side.prepare()

        def act() -> None:
            side.take()
            side.give()

        return act

    return interleave({name: pair(make()) for name, make in makers.items()}, rounds)


def in_a_shell(report: Report, rounds: int) -> None:
    gpulease = own_command()
    pair = f'GPUID=$("{gpulease}" get) && "{gpulease}" release -q $GPUID'
    timings = interleave(
        {"python -c pass": command([sys.executable, "-c", "pass"]), "get + release": command(["sh", "-c", pair])},
        rounds,
    )
    show(timings, "python -c pass")
    report.ratio("get and release in $(…) / python -c pass", timings, "get + release", ["python -c pass"], 4.5)


def main(report: Report, rounds: int, pairs: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder, redis_server() as port:
        os.environ.update(GPULEASE_DIR=str(folder / "broker"), GPULEASE_SIMULATE="1")
        makers: dict[str, Callable[[], Any]] = {REDIS: lambda: Redis(port), "gpulease": Gpulease}
        print("acquire + release from Python")
        both = acquire_and_release(makers, rounds)
        show(both, REDIS)
        report.ratio("acquire and release from Python / BRPOP and LPUSH of Redis", both, "gpulease", [REDIS], 3.0)
        print("\nhand-off to a waiting process")
        timings = hand_off(makers, rounds)
        show(timings, REDIS)
        report.ratio("hand-off to a waiting process / Redis's", timings, "gpulease", [REDIS], 2.5)
        print("\nfrom the shell")
        in_a_shell(report, pairs)


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(300, 5, "leases"), pairs=Size(20, 1, "pairs of get and release in a shell"))
