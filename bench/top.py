"""What `gpulease top` costs: time to its first picture, and processor time while nothing changes and while all GPUs do.

python bench/top.py [--span SECONDS] [--rounds N] [--waiting N]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import fcntl
import os
import pty
import random
import select
import signal
import struct
import subprocess
import termios
import time

from interleaved import compile_everything, own_command
from processes import seconds
from report import Report, Size, bench
from scratch import scratch

GPUS, FEW = 8, 40
SIZES = ((80, 24), (200, 60))
PICTURE = b"waiting"  # in a title of the table


class Watched:
    """`gpulease top` on a terminal of its own."""

    def __init__(self, environ: dict[str, str], columns: int, rows: int) -> None:
        began = time.monotonic()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            os.execve(own_command(), ["gpulease", "top"], {**environ, "TERM": "xterm-256color"})
        seen = b""
        while PICTURE not in seen:
            seen += os.read(self._terminal, 1 << 16)
        self.first = time.monotonic() - began

    def read(self, span: float) -> int:
        """How many bytes it sent in that time."""
        until, count = time.monotonic() + span, 0
        while (rest := until - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], rest)[0]:
                count += len(os.read(self._terminal, 1 << 16))
        return count

    def close(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


def measured(top: Watched, span: float) -> tuple[float, float]:
    """Percent of a core, and bytes a second."""
    before = seconds([top.pid])
    count = top.read(span)
    return (seconds([top.pid]) - before) / span * 100, count / span


def busy(machine: str, span: float) -> None:
    """In a child: every GPU has another utilization each second."""
    from gpulease.simulator.state import set_values

    until, chance = time.monotonic() + span, random.Random(1)
    while time.monotonic() < until:
        set_values(Path(machine), [f"gpu.{gpu}.utilization={chance.randint(0, 100)}" for gpu in range(GPUS)])
        time.sleep(min(1.0, span))
    os._exit(0)


def add(environ: dict[str, str], gpus: int, count: int) -> None:
    words = ["add", "-n", str(gpus), "--sweep", f"i=1:{count}", "--", "sleep", "3600", "{i}"]
    subprocess.run([own_command(), *words], env=environ, stdout=subprocess.DEVNULL, check=True)


def compare(
    report: Report, environ: dict[str, str], name: str, size: tuple[int, int], span: float, rounds: int
) -> None:
    top = Watched(environ, *size)
    top.read(span / 2)
    quiet, loaded = [], []
    for _ in range(rounds):
        quiet.append(measured(top, span))
        child = os.fork()
        if child == 0:
            busy(environ["GPULEASE_SIMULATION"], span)
        loaded.append(measured(top, span))
        os.waitpid(child, 0)
        top.read(span / 2)
    top.close()
    report.value(f"top, first picture, {name}", [top.first], "s")
    for what, found, target in (("nothing changes", quiet, 1.0), ("all GPUs change", loaded, None)):
        report.value(f"top, {what}, {name}, processor", [part for part, _ in found], "% of a core", target)
        report.value(f"top, {what}, {name}, output", [sent for _, sent in found], "bytes a second")


def main(report: Report, span: float, rounds: int, waiting: int) -> None:
    from gpulease.simulator.state import create

    compile_everything(report.quick)
    with scratch() as folder:
        machine = f"{folder}/machine"
        create(Path(machine), GPUS, "a100")
        environ = {**os.environ, "GPULEASE_DIR": f"{folder}/dir", "GPULEASE_SIMULATION": machine}
        add(environ, GPUS, 1)
        there = 0
        for count in (FEW, waiting):
            add(environ, 2, count - there)
            there = count
            for columns, rows in SIZES:
                compare(report, environ, f"{columns}x{rows}, {count:,} waiting", (columns, rows), span, rounds)


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        span=Size(2.0, 0.2, "seconds of each measurement"),
        rounds=Size(3, 1, "rounds"),
        waiting=Size(1000, 60, "jobs of the longer queue"),
    )
