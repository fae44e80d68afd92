"""The time of one plan: a device was given back, and so many requests wait.

    python bench/plan_cost.py [--json] [--quick]

Every lease of a full machine runs; one ends; the plan that follows is timed, with requests of several
users, priorities, widths, shares and durations in the line; the least of several times, since others may
use the machine. Also the memory of the line, for each request, and the time of the same plan with an order of
one's own for the first of the line (policy.order): by priority and arrival; and the time of a plan of the same line in
which as many shapes as may be are known.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tracemalloc
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src")]

from gpulease.model import Device, Lease, Owner, Request, Waiting
from gpulease.planner import DeviceView, Line, Policy, plan
from gpulease.planner.ranking import entries, ranked
from gpulease.planner.sketch import Sketch

G = 1 << 30
DEVICES = (8, 64, 1024)
WAITING = (10, 100, 1_000, 10_000, 100_000)
USERS = 20
SHAPES = 256  # the most that are in the line at once (broker/learning.py)


class Cost(NamedTuple):
    devices: int
    waiting: int
    milliseconds: float
    ordered: float  # milliseconds
    learned: float  # milliseconds
    bytes_each: float


def request_of(chance: random.Random, now: float) -> Request:
    duration = chance.choice((None, chance.uniform(60, 90_000)))
    priority = chance.choice((5, 5, 5, 4, 7))
    if chance.random() < 0.4:
        return Request(memory=chance.randrange(1, 70 * G), priority=priority, duration=duration)
    gpus = chance.choice((1, 1, 1, 1, 2, 4, 8))
    models = chance.choice(((), (), ("A100",)))
    later = now + 9e9 if chance.random() < 0.05 else None
    return Request(gpus, models=models, priority=priority, duration=duration, not_before=later)


def line_of(count: int, now: float, shapes: int = 0) -> Line:
    chance = random.Random(count)
    line = Line()
    for at in range(count):
        user = f"user{chance.randrange(USERS)}"
        since = now - chance.uniform(0, 86_400)
        request = request_of(chance, now)
        shape = f"{user} {request.gpus} {request.memory} {request.models}" if shapes else None
        known = shape in line.shapes or len(line.shapes) < shapes
        line.add(Waiting(f"{at:06}", request, user, 1, since, shape=shape if known else None))
    return line


def measure(count: int, waiting: int, repeats: int) -> Cost:
    now = 1e9
    devices = [Device(at % 8, f"GPU-{at}", "A100", memory_total=80 * G, memory_used=0) for at in range(count)]
    views = {device.uuid: DeviceView(host=str(at // 8)) for at, device in enumerate(devices)}
    tracemalloc.start()
    line = line_of(waiting, now)
    size = tracemalloc.get_traced_memory()[0] / waiting
    tracemalloc.stop()
    owner = Owner(1, "user1", "host", "boot")
    # Every second one declared its duration, so that holding devices is considered too.
    leases = [
        Lease(f"l{at}", "run", (f"GPU-{at}",), owner, now - 60 * at, duration=(None, 9e5)[at % 2])
        for at in range(1, count)
    ]
    kinds = line_of(waiting, now, SHAPES)
    sketches = {f"shape {shape}": Sketch(20.0, 20.0 * 60 * at, now) for at, shape in enumerate(kinds.shapes)}
    sketches["all"] = Sketch(100.0, 1e5, now)
    order = ranked(line, [row.id for row in entries(line, {}, now)])
    usual: list[float] = []
    ordered: list[float] = []
    learned: list[float] = []
    for _ in range(repeats):
        for there, given, known, taken in (
            (line, None, {}, usual),
            (line, order, {}, ordered),
            (kinds, None, sketches, learned),
        ):
            before = perf_counter()
            done = plan(devices, leases, there, Policy(), now, views=views, order=given, sketches=known)
            taken.append(perf_counter() - before)
            assert done.grants, "the device that was given back goes to somebody"
    return Cost(count, waiting, 1000 * min(usual), 1000 * min(ordered), 1000 * min(learned), size)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    options = parser.parse_args(arguments)
    repeats = 5 if options.quick else 31
    costs = [measure(count, waiting, repeats) for count in DEVICES for waiting in WAITING]
    if options.json:
        print(json.dumps([cost._asdict() for cost in costs], indent=2))
        return 0
    print(
        f"{'devices':>8}{'waiting':>10}{'one plan, ms':>15}{'in an order':>15}{'256 shapes':>15}{'bytes a request':>18}"
    )
    for cost in costs:
        print(
            f"{cost.devices:8}{cost.waiting:10,}{cost.milliseconds:15.3f}{cost.ordered:15.3f}{cost.learned:15.3f}{cost.bytes_each:18,.0f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
