"""What many viewers of the page cost: 200 of them, 8 simulated GPUs, 1,000 jobs that wait.

    python bench/faces.py [SECONDS] [VIEWERS]

The broker's time on the processor is measured with one viewer and with all of them, while nothing changes and while
jobs come and go; so is the server's own. Then jobs are moved in the line, one after another: from the broker's answer,
which follows the commit, to the event at a viewer. Viewers are sockets that read, in a process of their own.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import json
import multiprocessing
import os
import select
import socket
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

from interleaved import compile_everything, own_command, to_reach
from processes import children, resident, seconds

from gpulease.client import Client

WAITING = 1000
VIEWERS = 200
ROUNDS = 60
PACE = 0.25  # seconds between changes
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
            told = pipe.recv()
            if told is None:
                return
            mark, left = told, set(viewers)


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

    def __init__(self, folder: str) -> None:
        environ = {**os.environ, "GPULEASE_DIR": folder, "GPULEASE_SIMULATE": "8"}
        os.environ.update(environ)
        self.client = Client()
        given = {"cwd": folder, "environment": {"PATH": os.environ["PATH"]}}
        for count in (8, WAITING):
            commands = [["sleep", "100000"]] * count
            first = self.client.ask("add", request={}, commands=commands, options=given)["first"]
        self.jobs = range(first, first + WAITING)
        pid = self.client.ask("ping")["pid"]
        self.broker = [pid, *children(pid)]
        words = [own_command(), "web", "--json", "--port", "0"]
        self.server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.about: dict[str, Any] = json.loads(self.server.stdout.readline())

    def crowd(self, count: int) -> Crowd:
        return Crowd(self.about["port"], self.about["token"], count)

    def change(self, number: int) -> str:
        """A job moves to the front; what a viewer sees of that. It was too far back to be on the page before."""
        id = self.jobs[-1 - number]
        self.client.ask("move", id=id, index=0)
        return f"line-J{id}"

    def cost(self, span: float, changes: bool) -> tuple[float, float]:
        """Percent of a core: of the broker with its children, and of the server."""
        before = seconds(self.broker), seconds([self.server.pid])
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < span:
            if changes:
                self.change(self._next())
            time.sleep(PACE)
        after = seconds(self.broker), seconds([self.server.pid])
        return (after[0] - before[0]) / spent * 100, (after[1] - before[1]) / spent * 100

    _moved = ROUNDS

    def _next(self) -> int:
        self._moved = ROUNDS + (self._moved - ROUNDS + 1) % (WAITING - ROUNDS - 200)
        return self._moved

    def end(self) -> None:
        self.server.terminate()
        self.server.wait()
        self.client.ask("kill", select={"all": True})
        while self.client.ask("status")["leases"]:
            time.sleep(0.1)
        self.client.ask("stop")


def latencies(measured: Measured, crowd: Crowd) -> list[float]:
    """Of the last viewer that is told, each time."""
    found = []
    for number in range(ROUNDS):
        crowd.look_for(f"line-J{measured.jobs[-1 - number]}")
        measured.change(number)
        committed = time.monotonic()  # the answer leaves after the commit
        found.append(max(crowd.seen()) - committed)
        time.sleep(0.05)
    return found


def main(span: float, count: int) -> None:
    compile_everything()
    with tempfile.TemporaryDirectory(prefix="gl-", ignore_cleanup_errors=True) as folder:
        measured = Measured(f"{folder}/b")
        try:
            report(measured, span, count)
        finally:
            measured.end()


def report(measured: Measured, span: float, count: int) -> None:
    costs: dict[tuple[int, bool], tuple[float, float]] = {}
    for viewers in (1, count):
        crowd = measured.crowd(viewers)
        for changes in (False, True):
            measured.cost(2.0, changes)
            costs[viewers, changes] = measured.cost(span, changes)
            how = f"{1 / PACE:.0f} changes a second" if changes else "nothing changes"
            broker, server = costs[viewers, changes]
            print(f"{viewers:>4} viewers, {how:<20} broker {broker:6.2f} %, server {server:6.2f} % of a core")
        if viewers == count:
            each = (costs[count, True][1] - costs[1, True][1]) / (count - 1)
            print(f"the server: {resident(measured.server.pid):.0f} MB; {each:.3f} % of a core for each more viewer")
            waits = latencies(measured, crowd)
            print(f"commit to the last of {count} viewers: median {median(waits) * 1000:.0f} ms")
            to_reach("95 of 100, ms", quantiles(waits, n=20)[-1] * 1000, 300)
        crowd.end()
    for changes in (False, True):
        name = "with changes" if changes else "idle"
        to_reach(
            f"broker, {count} viewers / one, {name}", costs[count, changes][0] / max(costs[1, changes][0], 0.01), 2
        )


if __name__ == "__main__":
    main(
        float(sys.argv[1]) if len(sys.argv) > 1 else 20.0,
        int(sys.argv[2]) if len(sys.argv) > 2 else VIEWERS,
    )
