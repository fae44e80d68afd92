"""What `gpulease top` costs: time to its first picture, and processor time while nothing changes and while all GPUs do.

python bench/top.py [SECONDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

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

from interleaved import own_command, to_reach

GPUS, WAITING = 8, (40, 1000)
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

    def seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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
    before = top.seconds()
    count = top.read(span)
    return (top.seconds() - before) / span * 100, count / span


def busy(machine: str, span: float) -> None:
    """In a child: every GPU has another utilization each second."""
    from gpulease.simulation.state import set_values

    until, chance = time.monotonic() + span, random.Random(1)
    while time.monotonic() < until:
        set_values(Path(machine), [f"gpu.{gpu}.utilization={chance.randint(0, 100)}" for gpu in range(GPUS)])
        time.sleep(1)
    os._exit(0)


def add(environ: dict[str, str], gpus: int, count: int) -> None:
    words = ["add", "-n", str(gpus), "--sweep", f"i=1:{count}", "--", "sleep", "3600", "{i}"]
    subprocess.run([own_command(), *words], env=environ, stdout=subprocess.DEVNULL, check=True)


def compare(environ: dict[str, str], machine: str, name: str, size: tuple[int, int], span: float) -> None:
    top = Watched(environ, *size)
    top.read(2)
    quiet, sent = measured(top, span)
    child = os.fork()
    if child == 0:
        busy(machine, span)
    loaded, sent_busy = measured(top, span)
    os.waitpid(child, 0)
    top.close()
    print(
        f"{name}: first picture {top.first:.2f} s; nothing changes: {quiet:.2f} % of a core, {sent:.0f} bytes/s;"
        f" all GPUs change: {loaded:.2f} %, {sent_busy:.0f} bytes/s"
    )
    to_reach(f"processor at {name}, % of a core", quiet, 1)


def main(span: float) -> None:
    from gpulease.simulation.state import create

    with tempfile.TemporaryDirectory() as folder:
        machine = f"{folder}/machine"
        create(Path(machine), GPUS, "a100")
        environ = {**os.environ, "GPULEASE_DIR": f"{folder}/dir", "GPULEASE_SIMULATION": machine}
        add(environ, GPUS, 1)
        there = 0
        for waiting in WAITING:
            add(environ, 2, waiting - there)
            there = waiting
            for columns, rows in SIZES:
                compare(environ, machine, f"{columns}x{rows}, {waiting} waiting", (columns, rows), span)
        subprocess.run([own_command(), "kill", "all"], env=environ, stdout=subprocess.DEVNULL, check=True)
        subprocess.run([own_command(), "stop"], env=environ, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
