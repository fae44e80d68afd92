"""What many viewers of the page cost, with 8 simulated GPUs and many jobs that wait.

    python bench/faces.py [--span SECONDS] [--viewers N] [--waiting N]

The broker's time on the processor is measured with one viewer and with all of them, while nothing changes and while
jobs are moved; so is the server's own. Then jobs are moved in the line, one after another: from the broker's answer,
which follows the commit, to the event at a viewer. Viewers are sockets that read, in a process of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import itertools
import json
import multiprocessing
import os
import select
import socket
import subprocess
import time
from multiprocessing.connection import Connection
from typing import Any

from interleaved import Timings, compile_everything, own_command
from processes import resident, seconds, with_children
from report import TIMES, Report, Size, bench, percentile
from scratch import scratch

from gpulease.client.connection import Client

PACE = 0.25  # seconds between changes
HOW = {"nothing changes": False, f"{1 / PACE:.0f} changes a second": True}
SHOWN = 200  # jobs of the queue that the page may show
LEAST = 0.01  # % of a core that counts
READ = 1 << 16


# ---------------------------------------------------------------------- viewers


class Viewer:
    """Reads events; when it is told of a mark, which is the note of a job, the moment is kept."""

    def __init__(self, port: int, token: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        lines = ("GET /stream HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", "", "")
        self.socket.sendall("\r\n".join(lines).encode())
        self.bytes, self._rest = 0, b""

    def read(self) -> bytes:
        data = self.socket.recv(READ)
        self.bytes += len(data)
        seen = self._rest + data
        self._rest = seen[-40:]
        return seen


def view(pipe: Connection, port: int, token: str, count: int) -> None:
    """A process of viewers: tells when each of them has seen a mark that it is given."""
    viewers = {one.socket.fileno(): one for one in (Viewer(port, token) for _ in range(count))}
    poll = select.epoll()
    for descriptor in (*viewers, pipe.fileno()):
        poll.register(descriptor, select.EPOLLIN)
    mark, left = b"", set(viewers)  # at first: any event at all
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != pipe.fileno():
                if mark in viewers[descriptor].read() and descriptor in left:
                    left.discard(descriptor)
                    pipe.send(time.monotonic())
                continue
            reply = pipe.recv()
            if reply is None:
                return
            mark, left = reply, set(viewers)


class Crowd:
    def __init__(self, port: int, token: str, count: int) -> None:
        self.count = count
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=view, args=(theirs, port, token, count), daemon=True
        )
        self._process.start()
        self.seen()

    def look_for(self, mark: str) -> None:
        self._pipe.send(mark.encode())

    def seen(self) -> list[float]:
        """When each viewer saw it."""
        moments = []
        for _ in range(self.count):
            if not self._pipe.poll(60):
                sys.exit("A viewer was not told within a minute.")
            moments.append(self._pipe.recv())
        return moments

    def end(self) -> None:
        self._pipe.send(None)
        self._process.join()


# ---------------------------------------------------------------------- measuring


class Measured:
    """A broker with jobs that wait, and a server of the page."""

    def __init__(self, folder: str, waiting: int) -> None:
        environ = {**os.environ, "GPULEASE_DIR": folder, "GPULEASE_SIMULATE": "8"}
        os.environ.update(environ)
        self.client = Client()
        given = {"cwd": folder, "environment": {"PATH": os.environ["PATH"]}}
        for count in (8, waiting):
            commands = [["sleep", "100000"]] * count
            first = self.client.ask("add", request={}, commands=commands, options=given)["first"]
        self.jobs = range(first, first + waiting)
        pid = self.client.ask("ping")["pid"]
        self.broker = with_children(pid)
        self._moves = itertools.cycle(reversed(self.jobs[SHOWN:]))
        self.next = next(self._moves)
        words = [own_command(), "web", "--json", "--port", "0"]
        self.server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.about: dict[str, Any] = json.loads(self.server.stdout.readline())

    def crowd(self, count: int) -> Crowd:
        return Crowd(self.about["port"], self.about["token"], count)

    def change(self) -> None:
        """A job moves to the front, which was too far back to be on the page before."""
        self.client.ask("move", id=self.next, index=0)
        self.next = next(self._moves)

    def cost(self, span: float, changes: bool) -> tuple[float, float]:
        """Percent of a core: of the broker with its children, and of the server."""
        before = seconds(self.broker), seconds([self.server.pid])
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < span:
            if changes:
                self.change()
            time.sleep(PACE)
        after = seconds(self.broker), seconds([self.server.pid])
        return (after[0] - before[0]) / spent * 100, (after[1] - before[1]) / spent * 100


def latency(measured: Measured, crowd: Crowd) -> float:
    """From the commit of a change to the last viewer that is told."""
    crowd.look_for(f"line-J{measured.next}")
    measured.change()
    committed = time.monotonic()  # the answer leaves after the commit
    seconds = max(crowd.seen()) - committed
    time.sleep(0.05)
    return seconds


def main(report: Report, span: float, rounds: int, viewers: int, waiting: int, changes: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        measure(report, Measured(f"{folder}/b", waiting), span, rounds, viewers, changes)


def measure(report: Report, measured: Measured, span: float, rounds: int, viewers: int, changes: int) -> None:
    """One viewer and all of them in turn."""
    brokers: Timings = {}
    waits: list[float] = []
    for _ in range(rounds):
        for count in (1, viewers):
            crowd = measured.crowd(count)
            for how, changing in HOW.items():
                measured.cost(span / 4, changing)
                broker, server = measured.cost(span, changing)
                brokers.setdefault(f"{count} {how}", []).append(broker)
                print(f"{count:>4} viewers, {how:<20} broker {broker:6.2f} %, server {server:6.2f} % of a core")
            if count == viewers:
                waits += [latency(measured, crowd) * 1000 for _ in range(changes)]
            crowd.end()
    for how in HOW:
        # Of a broker that did nothing, which is so in a short run, there is no ratio.
        ratios = [
            max(many, LEAST) / max(one, LEAST)
            for one, many in zip(brokers[f"1 {how}"], brokers[f"{viewers} {how}"], strict=True)
        ]
        report.value(f"processor of the broker, {viewers} viewers of the page / one, {how}", ratios, TIMES, 2)
    report.value("memory of the page's server", [resident(measured.server.pid)], "MiB")
    report.value(f"commit to the last of {viewers} viewers", waits, "ms")
    report.value(f"commit to the last of {viewers} viewers, 95 of 100", [percentile(waits, 95)], "ms", 300)


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        span=Size(4.0, 0.3, "seconds of each measurement"),
        rounds=Size(3, 1, "rounds"),
        viewers=Size(200, 10, "viewers"),
        waiting=Size(1000, 260, "jobs that wait"),
        changes=Size(20, 3, "changes in a round, of which viewers are told"),
    )
