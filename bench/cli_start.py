"""How long a command takes to start and answer, beside an empty Python and gpustat, on 8 simulated GPUs.

python bench/cli_start.py [ROUNDS]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import os
import sys
import tempfile
from pathlib import Path

from interleaved import command, compile_everything, interleave, medians, own_command, show, to_reach

from gpulease.simulation.library import library_path
from gpulease.simulation.state import create


def main(rounds: int) -> None:
    compile_everything()
    library = library_path()
    with tempfile.TemporaryDirectory() as folder:
        create(Path(folder) / "machine", 8, "a100")
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
    middle = medians(timings)
    to_reach("--version / python -c pass", middle["gpulease --version"] / middle["python -c pass"], 1.6)
    to_reach("status --json / gpustat", middle["gpulease status --json"] / middle["gpustat"], 0.5)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
