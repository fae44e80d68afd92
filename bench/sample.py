"""One snapshot of 8 simulated GPUs with 16 processes, in one process, beside gpustat's and nvitop's query.

    python bench/sample.py [ROUNDS]

Each side gives index, name, memory, utilization, temperature, power and the processes with user and command.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from interleaved import compile_everything, interleave, medians, show, to_reach

from gpulease.simulation.library import library_path
from gpulease.simulation.state import create, occupy


def prepare(folder: Path) -> list[subprocess.Popen[bytes]]:
    create(folder, 8, "a100")
    sleepers = []
    for number in range(16):
        sleeper = subprocess.Popen(["sleep", "600"])
        occupy(folder, str(number % 8), 2 << 30, pid=sleeper.pid)
        sleepers.append(sleeper)
    return sleepers


def measure(rounds: int) -> None:
    import gpustat
    from nvitop import Device

    from gpulease.probes.nvml import NvmlProbe

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
    middle = medians(timings)
    to_reach("gpulease / gpustat", middle["gpulease"] / middle["gpustat"], 1.0)
    to_reach("gpulease / nvitop", middle["gpulease"] / middle["nvitop"], 1.0)


def main(rounds: int) -> None:
    library = library_path()
    if "GPULEASE_BENCH_CHILD" in os.environ:
        return measure(rounds)
    compile_everything()
    with tempfile.TemporaryDirectory() as folder:
        sleepers = prepare(Path(folder) / "machine")
        environ = {
            **os.environ,
            "GPULEASE_BENCH_CHILD": "1",
            "GPULEASE_SIMULATION": f"{folder}/machine",
            "LD_LIBRARY_PATH": str(library.parent),
        }
        try:
            subprocess.run([sys.executable, __file__, str(rounds)], env=environ, check=True)
        finally:
            for sleeper in sleepers:
                sleeper.kill()
                sleeper.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
