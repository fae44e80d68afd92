"""How long the verbs that people wait for take from the shell, with a broker, beside an empty Python.

python bench/verbs.py [--rounds N]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import os
from collections.abc import Callable

from interleaved import command, compile_everything, interleave, own_command, show
from report import Report, Size, bench
from scratch import scratch

from gpulease.simulator.state import create

EMPTY = "python -c pass"
# what is typed, and how many times an empty Python it may take
LIMITS = {"get + release": 4.5, "ls": 2.2, "explain": 2.2, "events": 2.2, "status": 2.5, "add": None, "run": None}


def main(report: Report, rounds: int) -> None:
    compile_everything(report.quick)
    with scratch() as folder:
        create(folder / "machine", 4, "a100")
        environ = {**os.environ, "GPULEASE_SIMULATION": f"{folder}/machine", "GPULEASE_DIR": f"{folder}/dir"}
        timings = interleave(_things(environ), rounds)
    show(timings, EMPTY)
    for name, limit in LIMITS.items():
        report.ratio(f"gpulease {name} / {EMPTY}", timings, name, [EMPTY], limit)


def _things(environ: dict[str, str]) -> dict[str, Callable[[], object]]:
    """Two jobs wait for a GPU that is reserved, so that `ls` and `explain` have something to tell."""

    def gpulease(*words: str) -> Callable[[], object]:
        return command([own_command(), *words], environ)

    gpulease("get", "--for", "1h", "--devices", "3")()
    for _ in range(2):
        gpulease("add", "--devices", "3", "--", "true")()
    get, release = gpulease("get", "--owner", str(os.getpid()), "--devices", "0"), gpulease("release", "-q", "0")
    return {
        EMPTY: command([sys.executable, "-c", "pass"], environ),
        "get + release": lambda: (get(), release()),
        "ls": gpulease("ls"),
        "explain": gpulease("explain", "1"),
        "events": gpulease("events"),
        "status": gpulease("status"),
        "add": gpulease("add", "--hold", "--", "true"),
        "run": gpulease("run", "--devices", "1", "--", "true"),
    }


if __name__ == "__main__":
    bench(__doc__, main, rounds=Size(30, 1, "rounds"))
