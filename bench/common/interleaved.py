"""Time several things in turn, round after round, so that noise hits all of them alike."""

from __future__ import annotations

import compileall
import os
import site
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gpulease

Timings = dict[str, list[float]]


def compile_everything(quick: bool = False) -> None:
    """Byte-code for our side and for the peers', since PYTHONDONTWRITEBYTECODE may be set."""
    folders = [str(Path(gpulease.__file__).parent), *([] if quick else site.getsitepackages())]
    for folder in folders:
        compileall.compile_dir(folder, quiet=2)


def interleave(things: Mapping[str, Callable[[], object]], rounds: int) -> Timings:
    timings: Timings = {name: [] for name in things}
    for action in things.values():
        action()  # warm the caches of the file system
    for _ in range(rounds):
        for name, action in things.items():
            begin = time.perf_counter()
            action()
            timings[name].append(time.perf_counter() - begin)
    return timings


def command(words: Sequence[str], environ: Mapping[str, str] | None = None) -> Callable[[], object]:
    return lambda: subprocess.run(words, env=environ, stdout=subprocess.DEVNULL, check=True)


def medians(timings: Timings) -> dict[str, float]:
    return {name: statistics.median(values) for name, values in timings.items()}


def show(timings: Timings, base: str) -> None:
    middle = medians(timings)
    width = max(map(len, middle))
    print(f"{'':<{width}}  {'median':>9}  {'x ' + base[:20]:>10}")
    for name, value in middle.items():
        print(f"{name:<{width}}  {value * 1000:>6.2f} ms  {value / middle[base]:>10.2f}")


def own_command() -> str:
    """The installed `gpulease` of this interpreter."""
    return os.path.join(os.path.dirname(sys.executable), "gpulease")
