"""The time of one plan: a device was given back, and so many requests wait.

    python bench/plan_cost.py [--repeats N] [--devices N] [--waiting N]

Every lease of a full machine runs; one ends; the plan that follows is timed, with requests of several
users, priorities, widths, shares and durations in the line; the least of several times, since others may
use the machine. Also the memory of the line, for each request, and the time of the same plan with an order of
one's own for the first of the line (policy.order): by priority and arrival; and the time of a plan of the same line in
which as many shapes as may be are known.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import random
import tracemalloc
from time import perf_counter
from typing import NamedTuple

from interleaved import compile_everything
from report import Report, Size, bench

from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import DeviceView, Line, Policy, plan
from gpulease.planner.lengths import Sketch
from gpulease.planner.order import Ranking, entries, ranked

G = 1 << 30
DEVICES = (8, 64, 1024)
WAITING = (10, 100, 1_000, 10_000, 100_000)
USERS = 20
SHAPES = 256  # the most that are in the line at once (broker/core/learned.py)
NOW = 1e9


class Lines(NamedTuple):
    """The same requests, without shapes and with them."""

    plain: Line
    shaped: Line
    bytes_each: float


class Cost(NamedTuple):
    """Milliseconds."""

    usual: float
    ordered: float
    learned: float


def request_of(chance: random.Random) -> Request:
    duration = chance.choice((None, chance.uniform(60, 90_000)))
    priority = chance.choice((5, 5, 5, 4, 7))
    if chance.random() < 0.4:
        return Request(memory=chance.randrange(1, 70 * G), priority=priority, duration=duration)
    gpus = chance.choice((1, 1, 1, 1, 2, 4, 8))
    models = chance.choice(((), (), ("A100",)))
    later = NOW + 9e9 if chance.random() < 0.05 else None
    return Request(gpus, models=models, priority=priority, duration=duration, not_before=later)


def line_of(count: int, shapes: int = 0) -> Line:
    chance = random.Random(count)
    line = Line()
    for at in range(count):
        user = f"user{chance.randrange(USERS)}"
        since = NOW - chance.uniform(0, 86_400)
        request = request_of(chance)
        shape = f"{user} {request.gpus} {request.memory} {request.models}" if shapes else None
        known = shape in line.shapes or len(line.shapes) < shapes
        line.add(Waiting(f"{at:06}", request, user, 1, since, shape=shape if known else None))
    return line


def lines_of(waiting: int) -> Lines:
    tracemalloc.start()
    line = line_of(waiting)
    size = tracemalloc.get_traced_memory()[0] / waiting
    tracemalloc.stop()
    return Lines(line, line_of(waiting, SHAPES), size)


def measure(count: int, lines: Lines, repeats: int) -> Cost:
    devices = [Device(at % 8, f"GPU-{at}", "A100", memory_total=80 * G, memory_used=0) for at in range(count)]
    views = {device.uuid: DeviceView(host=str(at // 8)) for at, device in enumerate(devices)}
    owner = Owner(1, "user1", "host", "boot")
    # Every second one declared its duration, so that holding devices is considered too.
    leases = [
        Lease(f"l{at}", "run", (f"GPU-{at}",), owner, NOW - 60 * at, duration=(None, 9e5)[at % 2])
        for at in range(1, count)
    ]
    sketches = {f"shape {shape}": Sketch(20.0, 20.0 * 60 * at, NOW) for at, shape in enumerate(lines.shaped.shapes)}
    sketches["all"] = Sketch(100.0, 1e5, NOW)
    order = ranked(lines.plain, [row.id for row in entries(lines.plain, {}, NOW)])
    ways: tuple[tuple[Line, Ranking, dict[str, Sketch]], ...] = (
        (lines.plain, (), {}),
        (lines.plain, order, {}),
        (lines.shaped, (), sketches),
    )
    least = [float("inf")] * len(ways)
    for _ in range(repeats):
        for at, (there, given, known) in enumerate(ways):
            before = perf_counter()
            done = plan(devices, leases, there, Policy(), NOW, views=views, order=given, sketches=known)
            least[at] = min(least[at], perf_counter() - before)
            assert done.grants, "the device that was given back goes to somebody"
    return Cost(*(1000 * seconds for seconds in least))


def main(report: Report, repeats: int, devices: int, waiting: int) -> None:
    compile_everything(report.quick)
    print(
        f"{'waiting':>10}{'devices':>8}{'one plan, ms':>15}{'in an order':>15}{'256 shapes':>15}{'bytes a request':>18}"
    )
    found: dict[tuple[int, int], Cost] = {}
    for there in (count for count in WAITING if count <= waiting):
        lines = lines_of(there)
        for count in (count for count in DEVICES if count <= devices):
            cost = found[count, there] = measure(count, lines, repeats)
            costs = "".join(f"{value:15.3f}" for value in cost)
            print(f"{there:10,}{count:8}{costs}{lines.bytes_each:18,.0f}", flush=True)
    for count, there in found:
        if there in (min(waiting, 1_000), waiting):
            what = f"one plan, {count:,} GPUs, {there:,} waiting"
            report.value(what, [found[count, there].usual], "ms")
    report.value("memory of one request in a long line", [lines.bytes_each], "bytes")


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        repeats=Size(15, 2, "plans of each kind, of which the quickest counts"),
        devices=Size(1024, 64, "GPUs at most"),
        waiting=Size(100_000, 100, "requests that wait, at most"),
    )
