"""What a broker costs while nobody asks: memory, and time on the processor, with 8 simulated GPUs and one lease held.

Its looks at the devices for the history are in it; bench/history.py tells what these alone cost.

python bench/idle.py [--span SECONDS] [--rounds N]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import json
import os
import subprocess
import time

from interleaved import compile_everything, own_command
from processes import resident, seconds, with_children
from report import Report, Size, bench
from scratch import scratch


def main(report: Report, span: float, rounds: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        environ = {**os.environ, "GPULEASE_DIR": str(folder), "GPULEASE_SIMULATE": "8"}
        gpulease = own_command()
        subprocess.run([gpulease, "get", "--for", "1h"], env=environ, stdout=subprocess.DEVNULL, check=True)
        reply = subprocess.run([gpulease, "status", "--json"], env=environ, capture_output=True, text=True, check=True)
        pid = json.loads(reply.stdout)["broker"]["pid"]
        time.sleep(span / 4)  # until what was asked is over
        parts = []
        for _ in range(rounds):
            pids = with_children(pid)
            before = seconds(pids)
            time.sleep(span)
            parts.append((seconds(pids) - before) / span * 100)
        report.value("idle broker, memory", [resident(pid)], "MiB", 40)
        report.value("idle broker, its sampler's memory", [resident(with_children(pid)[-1])], "MiB")
        report.value("idle broker with its sampler, processor", parts, "% of a core", 0.2)


if __name__ == "__main__":
    bench(__doc__, main, span=Size(8.0, 0.5, "seconds of a round"), rounds=Size(3, 1, "rounds"))
