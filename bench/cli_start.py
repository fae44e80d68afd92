"""How long a command takes to start and answer, beside an empty Python and gpustat, on 8 simulated GPUs.

python bench/cli_start.py [--rounds N]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import os

from interleaved import command, compile_everything, interleave, own_command, show
from report import Report, Size, bench
from scratch import scratch

from gpulease.simulator.library import library_path
from gpulease.simulator.state import create


def main(report: Report, rounds: int) -> None:
    compile_everything(report.quick)
    library = library_path()
    with scratch() as folder:
        create(folder / "machine", 8, "a100")
        environ = {
            **os.environ,
            "GPULEASE_SIMULATION": f"{folder}/machine",
            "LD_LIBRARY_PATH": str(library.parent),
        }
        gpulease, gpustat = own_command(), os.path.join(os.path.dirname(sys.executable), "gpustat")
        timings = interleave(
            {
                "python -c pass": command([sys.executable, "-c", "pass"], environ),
                "gpulease --version": command([gpulease, "--version"], environ),
                "gpulease status --json": command([gpulease, "status", "--json"], environ),
                "gpustat": command([gpustat], environ),
            },
            rounds,
        )
    show(timings, "python -c pass")
    report.ratio("gpulease --version / python -c pass", timings, "gpulease --version", ["python -c pass"], 1.6)
    report.ratio("gpulease status --json / gpustat", timings, "gpulease status --json", ["gpustat"], 0.5)


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(20, 1, "rounds"))
