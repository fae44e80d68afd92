"""What `gpulease add --engine slurm` costs beside `sbatch` and an empty Python, on a real Slurm of this machine.

python bench/slurm.py [--rounds N]      as root, with Debian's slurm-wlm and munge
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:1] = [str(Path(__file__).parent / "common"), str(Path(__file__).parents[1] / "tests")]

import os
import shutil

from interleaved import command, compile_everything, interleave, own_command, show
from report import Report, Size, bench
from support.slurm_box import SlurmBox

EMPTY, SBATCH, ADD = "python -c pass", "sbatch", "gpulease add --engine slurm"
LIMIT = 1.5


def main(report: Report, rounds: int) -> None:
    if os.geteuid() or not shutil.which("slurmctld") or not shutil.which("munged"):
        sys.exit("This bench needs root, and Debian's slurm-wlm and munge.")
    compile_everything(report.quick)
    box = SlurmBox()
    try:
        script = box.folder / "job.sh"
        script.write_text("#!/bin/sh\ntrue\n")
        own = ["--hold", "--gres=gpu:1", "--output=/dev/null", str(script)]
        timings = interleave(
            {
                EMPTY: command([sys.executable, "-c", "pass"], box.environ),
                SBATCH: command(["sbatch", *own], box.environ),
                ADD: command([own_command(), "add", "--engine", "slurm", "--hold", "--", "true"], box.environ),
                "squeue --json": command(["squeue", "--states=all", "--json"], box.environ),
                "gpulease ls": command([own_command(), "ls"], box.environ),
            },
            rounds,
        )
    finally:
        box.close()
    show(timings, EMPTY)
    report.ratio(f"{ADD} / {SBATCH} and {EMPTY}", timings, ADD, [SBATCH, EMPTY], LIMIT)


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(30, 1, "rounds"))
