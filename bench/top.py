"""What `gpulease top` costs: time to its first picture, and processor time while nothing changes and while all GPUs do.

python bench/top.py [--span SECONDS] [--waiting N]
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
import tempfile
import termios
import time

from interleaved import compile_everything, own_command
from processes import seconds
from report import Report, Size, bench

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
    from gpulease.simulation.state import set_values

    until, chance = time.monotonic() + span, random.Random(1)
    while time.monotonic() < until:
        set_values(Path(machine), [f"gpu.{gpu}.utilization={chance.randint(0, 100)}" for gpu in range(GPUS)])
        time.sleep(min(1.0, span))
    os._exit(0)


def add(environ: dict[str, str], gpus: int, count: int) -> None:
    words = ["add", "-n", str(gpus), "--sweep", f"i=1:{count}", "--", "sleep", "3600", "{i}"]
    subprocess.run([own_command(), *words], env=environ, stdout=subprocess.DEVNULL, check=True)


def compare(
    report: Report, environ: dict[str, str], machine: str, name: str, size: tuple[int, int], span: float
) -> None:
    top = Watched(environ, *size)
    top.read(span / 4)
    quiet, sent = measured(top, span)
    child = os.fork()
    if child == 0:
        busy(machine, span)
    loaded, sent_busy = measured(top, span)
    os.waitpid(child, 0)
    top.close()
    print(f"{name}: nothing changes: {sent:.0f} bytes/s; all GPUs change: {sent_busy:.0f} bytes/s")
    report.value(f"first picture, {name}", [top.first], "s")
    report.value(f"nothing changes, {name}", [quiet], "% of a core", 1)
    report.value(f"all GPUs change, {name}", [loaded], "% of a core")


def main(report: Report, span: float, waiting: int) -> None:
    from gpulease.simulation.state import create

    compile_everything(report.quick)
    with tempfile.TemporaryDirectory() as folder:
        machine = f"{folder}/machine"
        create(Path(machine), GPUS, "a100")
        environ = {**os.environ, "GPULEASE_DIR": f"{folder}/dir", "GPULEASE_SIMULATION": machine}
        add(environ, GPUS, 1)
        there = 0
        for count in (FEW, waiting):
            add(environ, 2, count - there)
            there = count
            for columns, rows in SIZES:
                compare(report, environ, machine, f"{columns}x{rows}, {count:,} waiting", (columns, rows), span)
        subprocess.run([own_command(), "kill", "all"], env=environ, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([own_command(), "stop"], env=environ, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        span=Size(8.0, 0.3, "seconds of each measurement"),
        waiting=Size(1000, 60, "jobs of the longer queue"),
    )
