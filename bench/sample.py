"""One snapshot of 8 simulated GPUs with 16 processes, in one process, beside gpustat's and nvitop's query.

    python bench/sample.py [--rounds N]

Each side gives index, name, memory, utilization, temperature, power and the processes with user and command.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from interleaved import compile_everything, interleave, show
from report import Report, Size, bench
from scratch import scratch

from gpulease.simulator.library import library_path
from gpulease.simulator.state import create, occupy


@contextmanager
def machine() -> Iterator[None]:
    """This process sees it, and so do the libraries that it loads from here on."""
    with scratch() as place:
        folder = place / "machine"
        create(folder, 8, "a100")
        os.environ["GPULEASE_SIMULATION"] = str(folder)
        ctypes.CDLL(str(library_path()))  # who wants a library of that name afterwards gets this one
        for number in range(16):
            sleeper = subprocess.Popen(["sleep", "600"])
            occupy(folder, str(number % 8), 2 << 30, pid=sleeper.pid)
        yield


def measure(report: Report, rounds: int) -> None:
    import gpustat
    from nvitop import Device

    from gpulease.system.nvml import NvmlProbe

    probe = NvmlProbe(simulated=True)
    devices = Device.all()

    def with_nvitop() -> object:
        snapshots = [device.as_snapshot() for device in devices]
        processes = [process.as_snapshot() for device in devices for process in device.processes().values()]
        return snapshots, processes

    seen = sum(len(device.processes or ()) for device in probe.snapshot().devices)
    assert seen == 16, f"saw {seen} processes"
    timings = interleave(
        {"gpulease": probe.snapshot, "gpustat": gpustat.GPUStatCollection.new_query, "nvitop": with_nvitop}, rounds
    )
    show(timings, "gpulease")
    for peer in ("gpustat", "nvitop"):
        report.ratio(f"one snapshot of gpulease / of {peer}", timings, "gpulease", [peer], 1.0)


def main(report: Report, rounds: int) -> None:
    compile_everything(report.quick)
    with machine():
        measure(report, rounds)


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(20, 1, "rounds"))
