"""What `gpulease add --engine slurm` costs beside `sbatch` and an empty Python, on a real Slurm of this machine.

python bench/slurm.py [ROUNDS]      as root, with Debian's slurm-wlm and munge
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent / "common"), str(Path(__file__).parents[1] / "tests")]

import os
import shutil

from interleaved import command, compile_everything, interleave, medians, own_command, show, to_reach
from support.slurm_box import SlurmBox

EMPTY, SBATCH, ADD = "python -c pass", "sbatch", "gpulease add"
LIMIT = 1.5


def main(rounds: int) -> None:
    if os.geteuid() or not shutil.which("slurmctld"):
        return print("needs root, and Debian's slurm-wlm and munge")
    compile_everything()
    box = SlurmBox()
    try:
        script = box.folder / "job.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        own = ["--hold", "--gres=gpu:1", "--output=/dev/null", str(script)]
        timings = interleave(
            {
                EMPTY: command([sys.executable, "-c", "pass"], box.environ),
                SBATCH: command(["sbatch", *own], box.environ),
                ADD: command([own_command(), "add", "--hold", "--", "true"], box.environ),
                "gpulease add --engine slurm": command(
                    [own_command(), "add", "--engine", "slurm", "--hold", "--", "true"], box.environ
                ),
                "squeue --json": command(["squeue", "--states=all", "--json"], box.environ),
                "gpulease ls": command([own_command(), "ls"], box.environ),
            },
            rounds,
        )
    finally:
        box.close()
    show(timings, EMPTY)
    middle = medians(timings)
    to_reach(f"{ADD} / ({SBATCH} + {EMPTY})", middle[ADD] / (middle[SBATCH] + middle[EMPTY]), LIMIT)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 30)
