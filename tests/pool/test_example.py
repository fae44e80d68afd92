"""The example runs as it is printed, and a notebook's functions work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.machine import Machine

ROOT = Path(__file__).parents[2]


def test_the_matrix_example_gives_the_direct_result(machine: Machine, tmp_path: Path) -> None:
    words = [sys.executable, str(ROOT / "examples" / "matrix_pool.py"), "--results", str(tmp_path / "results")]
    for _ in range(2):
        done = subprocess.run(words, env=machine.environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "20 results, all as computed directly\n"
    assert len(list((tmp_path / "results").glob("*.pickle"))) == 20


NOTEBOOK = """
import gpulease
from dataclasses import dataclass
@dataclass
class Point:
    x: int
scale = 2
def grow(point): return Point(point.x * scale)
pool = gpulease.Pool(gpus=1)
assert pool.submit(grow, Point(3)).result(30) == Point(6)
scale = 5
assert pool.submit(grow, Point(3)).result(30) == Point(15)
assert isinstance(next(pool.map(grow, [Point(1)])), Point)
import sys
pool.submit(lambda: sys.stdout.write("late\\n"))
print("ok")
"""


def test_what_stands_in_main_works_and_an_open_pool_ends_with_its_program(machine: Machine) -> None:
    done = subprocess.run(
        [sys.executable, "-"], input=NOTEBOOK, env=machine.environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok\n"
    assert done.stderr == "[worker 1, GPU 0] late\n"  # what was under way at the program's end is finished
