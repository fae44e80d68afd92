"""A lease while a crowd asks: 100 clients ask for `status` as fast as they can, and somebody else wants a GPU.

    python bench/crowd.py [--rounds N]

Each client of the crowd has a connection of its own on which one question is always under way. The crowd asks and
rests in turn, round after round; the same lease is taken in both, from Python over one kept connection and by
`gpulease get` in a shell. The figure is how many times as long it takes beside the crowd.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import multiprocessing
import os
import select
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from interleaved import Timings, compile_everything, own_command, show
from report import Report, Size, bench, percentile
from scratch import scratch

import gpulease
from gpulease import PROTOCOL
from gpulease.client.connection import Client
from gpulease.client.discovery import connect
from gpulease.protocol.wire import HEAD, pack

CLIENTS = 100
PROCESSES = 4
PATIENCE = 60  # seconds for all of the crowd to be answered
EACH = 10  # leases from Python in one round; one from the shell
MOST = 10.0  # times as long as when nobody else asks
QUESTION = pack({"v": PROTOCOL, "do": "status"})
READ = 1 << 16


class Asking:
    """One client of the crowd. Its answers are counted and not decoded, so that the broker is what is loaded."""

    def __init__(self) -> None:
        self.socket, _ = connect(start=False)
        self._answer = bytearray()
        self.answers = 0

    def ask(self) -> None:
        self.socket.sendall(QUESTION)

    def answered(self) -> bool:
        """Take in what has come; whether the answer is complete."""
        self._answer += self.socket.recv(READ)
        length = int.from_bytes(self._answer[:HEAD], "big")
        if len(self._answer) < HEAD + length:
            return False
        assert b'"error"' not in self._answer[:40], bytes(self._answer)
        self._answer.clear()
        self.answers += 1
        return True


def part_of_crowd(pipe: Connection, clients: int) -> None:
    """Asks between `ask` and `rest`: says `asking` once each client was answered, and at rest how many answers came."""
    asking = {one.socket.fileno(): one for one in (Asking() for _ in range(clients))}
    poll = select.epoll()
    for descriptor in (*asking, pipe.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    while pipe.recv() == "ask":
        ask_until_told(pipe, asking, poll)
        pipe.send(sum(one.answers for one in asking.values()))


def ask_until_told(pipe: Connection, asking: dict[int, Asking], poll: select.epoll) -> None:
    under_way, unanswered, resting = set(asking), set(asking), False
    for one in asking.values():
        one.answers = 0
        one.ask()
    while under_way:
        for descriptor, _ in poll.poll():
            if descriptor == pipe.fileno():
                resting = pipe.recv() == "rest"
            elif asking[descriptor].answered():
                if unanswered:
                    unanswered.discard(descriptor)
                    if not unanswered:
                        pipe.send("asking")
                if resting:
                    under_way.discard(descriptor)
                else:
                    asking[descriptor].ask()


class Crowd:
    def __init__(self) -> None:
        self._pipes = []
        self._processes = []
        self.answers, self.seconds = 0, 0.0
        for _ in range(PROCESSES):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("fork").Process(
                target=part_of_crowd, args=(theirs, CLIENTS // PROCESSES), daemon=True
            )
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def ask(self) -> None:
        """Returns once every client has had an answer, so that all of them have a question under way."""
        self._began = time.perf_counter()
        self._tell("ask")
        self._hear()

    def rest(self) -> None:
        """Returns once no question is under way."""
        self._tell("rest")
        self.answers += sum(self._hear())
        self.seconds += time.perf_counter() - self._began

    def end(self) -> None:
        self._tell("end")
        for process in self._processes:
            process.join()

    def _tell(self, word: str) -> None:
        for pipe in self._pipes:
            pipe.send(word)

    def _hear(self) -> list[Any]:
        until = time.monotonic() + PATIENCE
        if not all(pipe.poll(max(0.0, until - time.monotonic())) for pipe in self._pipes):
            sys.exit(f"The crowd was not answered within {PATIENCE} s.")
        return [pipe.recv() for pipe in self._pipes]


def from_python() -> float:
    begin = time.perf_counter()
    gpulease.acquire().release()
    return time.perf_counter() - begin


def from_the_shell(client: Client) -> Callable[[], float]:
    """`gpulease get` alone; what it took is given back by this process, which owns it."""

    def get() -> float:
        begin = time.perf_counter()
        taken = subprocess.run([own_command(), "get"], capture_output=True, text=True, check=True).stdout
        seconds = time.perf_counter() - begin
        client.ask("release", what=[taken.strip()])
        return seconds

    return get


def measure(crowd: Crowd, action: Callable[[], float], rounds: int, each: int) -> Timings:
    timings: Timings = {"nobody else asks": [], "beside the crowd": []}
    action()
    for _ in range(rounds):
        timings["nobody else asks"] += [action() for _ in range(each)]
        crowd.ask()
        timings["beside the crowd"] += [action() for _ in range(each)]
        crowd.rest()
    return timings


def tell(report: Report, what: str, timings: Timings) -> None:
    print(what)
    show(timings, "nobody else asks")
    late = {name: percentile(values, 95) for name, values in timings.items()}
    print("95 of 100 within", ", ".join(f"{value * 1000:.2f} ms ({name})" for name, value in late.items()))
    name = f"{what}, beside {CLIENTS} clients that ask for status / alone"
    report.ratio(name, timings, "beside the crowd", ["nobody else asks"], MOST)


def main(report: Report, rounds: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        os.environ.update(GPULEASE_DIR=str(folder / "broker"), GPULEASE_SIMULATE="8")
        client = Client()
        crowd = Crowd()
        try:
            tell(report, "acquire + release from Python", measure(crowd, from_python, rounds, EACH))
            print()
            tell(report, "gpulease get in a shell", measure(crowd, from_the_shell(client), rounds, 1))
        finally:
            crowd.end()
    report.value("answers to the crowd", [crowd.answers / crowd.seconds], "a second", better="higher")


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(20, 1, "rounds"))
