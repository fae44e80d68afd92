"""The pool beside its peers: many small calls, one call, and a large array for all workers.

python bench/pool.py [--rounds N]     with loky, ray and others where they are installed
python bench/pool.py --items SRC      items of 5 ms and more alone, beside another version, by its `src`
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import argparse
import json
import multiprocessing
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing import shared_memory
from statistics import median
from typing import Any

from interleaved import compile_everything, interleave, show
from report import TIMES, Report, Size, bench
from scratch import scratch

import gpulease

ITEMS = 200
WORKERS = 2


def trivial(value: int) -> int:
    return value + 1


def refers(value: int) -> int:
    return trivial(value)


# -------------------------------------------------------------------- many small calls, and one


def small_calls(report: Report, rounds: int, calls: int) -> None:
    with ExitStack() as stack:
        # Those that fork come first: a fork in a program with threads may hang.
        plain = stack.enter_context(multiprocessing.get_context("fork").Pool(WORKERS))
        standard = stack.enter_context(ProcessPoolExecutor(WORKERS, multiprocessing.get_context("fork")))
        list(standard.map(trivial, range(100)))
        others: dict[str, Callable[[], object]] = {}
        _add_others(report, others, stack, calls)
        for each in others.values():
            each()
        pool = stack.enter_context(gpulease.Pool(gpus=WORKERS))
        things: dict[str, Callable[[], object]] = {
            "ProcessPoolExecutor.map": lambda: list(standard.map(trivial, range(calls))),
            "gpulease map": lambda: list(pool.map(trivial, range(calls))),
            "gpulease submit": lambda: [each.result() for each in [pool.submit(trivial, n) for n in range(calls)]],
            "multiprocessing.Pool.imap": lambda: list(plain.imap(trivial, range(calls))),
        }
        _add_loky(report, things, calls)
        things.update(others)
        _add_ray(report, things, calls)
        timings = interleave(things, rounds)
        show(timings, "ProcessPoolExecutor.map")
        what = f"Pool.map of {calls:,} small calls on {WORKERS} warm workers"
        report.ratio(f"{what} / ProcessPoolExecutor", timings, "gpulease map", ["ProcessPoolExecutor.map"], 0.333)
        if "loky map" in timings:
            report.ratio(f"{what} / loky", timings, "gpulease map", ["loky map"], 1.0)
        print("\none call at a time")
        singles = {
            "ProcessPoolExecutor": _times(lambda: standard.submit(trivial, 1).result()),
            "gpulease": _times(lambda: pool.submit(trivial, 1).result()),
            "ProcessPoolExecutor, one that can be imported": _times(lambda: standard.submit(abs, 1).result()),
            "gpulease, one that can be imported": _times(lambda: pool.submit(abs, 1).result()),
            "gpulease, one that refers to another": _times(lambda: pool.submit(refers, 1).result()),
        }
        single: dict[str, list[float]] = {name: [] for name in singles}
        for _ in range(rounds * 5):  # in turn, a hundred each
            for name, measure in singles.items():
                single[name] += measure()
        show(single, "ProcessPoolExecutor")
        report.ratio("one call / of ProcessPoolExecutor", single, "gpulease", ["ProcessPoolExecutor"], 1.0)


def _times(call: Callable[[], object]) -> Callable[[], list[float]]:
    def measure() -> list[float]:
        times = []
        for _ in range(100):
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return times

    return measure


def _add_loky(report: Report, things: dict[str, Callable[[], object]], calls: int) -> None:
    try:
        import loky
    except ImportError:
        return report.leave_out("loky")
    executor = loky.get_reusable_executor(WORKERS)
    things["loky map"] = lambda: list(executor.map(trivial, range(calls)))


def _add_others(report: Report, things: dict[str, Callable[[], object]], stack: ExitStack, calls: int) -> None:
    """Those of the decision record, where they are installed."""
    try:
        import joblib
        import mpire.pool
        import pebble
    except ImportError:
        for name in ("joblib", "mpire", "pebble"):
            report.leave_out(name)
        return
    pebbles = stack.enter_context(pebble.ProcessPool(WORKERS))
    mpires: Any = stack.enter_context(mpire.pool.WorkerPool(WORKERS, keep_alive=True))
    jobs = stack.enter_context(joblib.Parallel(WORKERS))
    things["pebble map"] = lambda: list(pebbles.map(trivial, range(calls)).result())
    things["mpire imap, chunks of 1"] = lambda: list(mpires.imap(trivial, range(calls), chunk_size=1))
    things["joblib, its own batches"] = lambda: jobs(joblib.delayed(trivial)(number) for number in range(calls))


def _add_ray(report: Report, things: dict[str, Callable[[], object]], calls: int) -> None:
    ray = None if report.quick else _ray()  # it takes seconds to start
    if ray is None:
        return report.leave_out("ray")
    remote = ray.remote(trivial)
    things["Ray tasks"] = lambda: ray.get([remote.remote(number) for number in range(calls)])


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        return None
    if not ray.is_initialized():
        os.environ["RAY_AUTH_MODE"] = "disabled"
        ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, object_store_memory=1 << 30)
    return ray


# -------------------------------------------------------------------- items as GPUs have them


def waits(seconds: float, *more: object) -> float:
    """As a call that waits for its GPU: it needs no core of this machine."""
    time.sleep(seconds)
    return seconds


def items_of_5_ms_and_more(count: int) -> dict[str, float]:
    """Seconds of each way, divided by what the items take by themselves."""
    array = bytes(1 << 20)
    with gpulease.Pool(gpus=WORKERS) as pool:
        while len(pool.gpus) < WORKERS:
            pool.submit(trivial, 1).result()
        ways: dict[str, tuple[float, Callable[[list[float]], object]]] = {
            "map, 5 ms": (0.005, lambda items: list(pool.map(waits, items))),
            "map of a generator, 5 ms": (0.005, lambda items: list(pool.map(waits, iter(items)))),
            "submit, 5 ms": (0.005, lambda items: _all([pool.submit(waits, each) for each in items])),
            "submit of a lambda, 5 ms": (
                0.005,
                lambda items: _all([pool.submit(lambda each=each: waits(each)) for each in items]),  # type: ignore[misc]
            ),
            "map with 1 MB each, 5 ms": (0.005, lambda items: list(pool.map(waits, items, [array] * len(items)))),
            "map, 20 ms": (0.02, lambda items: list(pool.map(waits, items))),
        }
        return {name: _overhead([each] * int(count * 0.005 / each), run) for name, (each, run) in ways.items()}


def _all(futures: list[Any]) -> list[Any]:
    return [future.result() for future in futures]


def _overhead(items: list[float], run: Callable[[list[float]], object]) -> float:
    begin = time.perf_counter()
    run(items)
    return (time.perf_counter() - begin) / (sum(items) / WORKERS)


def compare_items(report: Report, rounds: int, count: int, others: list[str]) -> None:
    """Each version in a process of its own, in turn."""
    versions = {"this version": str(Path(__file__).parents[1] / "src"), **{path: path for path in others}}
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in versions}
    for _ in range(rounds):
        for name, path in versions.items():
            figures[name].append(_run_version(path, count))
    for way in figures["this version"][0]:
        middle = {name: median(each[way] for each in reply) for name, reply in figures.items()}
        print(f"{way:<26}", *(f"{name}: {value:.3f} x the items" for name, value in middle.items()), sep="  ")
    for way in figures["this version"][0]:
        report.value(f"Pool: {way} an item / the items alone", [reply[way] for reply in figures["this version"]], TIMES)


def _run_version(path: str, count: int) -> dict[str, float]:
    with scratch() as folder:
        environ = {**os.environ, "PYTHONPATH": path, "GPULEASE_DIR": str(folder), "GPULEASE_SIMULATE": str(WORKERS)}
        done = subprocess.run(
            [sys.executable, __file__, "--once", str(count)], env=environ, stdout=subprocess.PIPE, text=True, check=True
        )
    reply: dict[str, float] = json.loads(done.stdout)
    return reply


# -------------------------------------------------------------------- a large array for all


def total_of_shared(number: int) -> tuple[float, int, int]:
    return _look(gpulease.worker().shared["array"], number)


_global: Any = None


def keep(value: Any) -> None:
    global _global
    _global = value


def total_of_global(number: int) -> tuple[float, int, int]:
    return _look(_global, number)


def attach(name: str) -> None:
    segment = shared_memory.SharedMemory(name)
    attached.append(segment)
    keep(_view(segment))


def _view(segment: shared_memory.SharedMemory) -> Any:
    import numpy

    return numpy.frombuffer(segment.buf, dtype="float64")  # type: ignore[arg-type]


attached: list[shared_memory.SharedMemory] = []


def _look(array: Any, number: int) -> tuple[float, int, int]:
    """A part of the array for each item; the last ones read a bit of every page, and what this process weighs."""
    first, end = (len(array) * at // ITEMS for at in (number, number + 1))
    total = float(array[first:end].sum())
    if number < ITEMS - 8 * WORKERS:
        return total, os.getpid(), 0
    array[::512].sum()
    with open("/proc/self/smaps_rollup") as file:
        pss = next(int(line.split()[1]) << 10 for line in file if line.startswith("Pss:"))
    return total, os.getpid(), pss


def broadcast(report: Report, rounds: int, size: int) -> None:
    import numpy

    array = numpy.arange(size // 8, dtype="float64")
    expected = float(array.sum())
    ways = {name: way for name, way in BROADCASTS.items() if name != "ray.put" or "ray" not in report.left_out}
    figures: dict[str, list[float]] = {name: [] for name in ways}
    weights: dict[str, float] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            with way(array) as results:
                figures[name].append(time.perf_counter() - begin)
                assert abs(sum(total for total, _, _ in results) - expected) < 1e-6 * expected
                weighed = {pid: pss for _, pid, pss in results if pss}  # the last word of each
                weights[name] = max(weighed.values()) / size
    show(figures, "gpulease shared=")
    for name, weight in weights.items():
        print(f"PSS of a worker / array, {name}: {weight:.2f}")
    shared = f"an array of {size >> 20} MiB for {WORKERS} workers"
    report.value(f"{shared}, memory of a worker / of the array", [weights["gpulease shared="]], TIMES, 0.6)
    copies = interleave(
        {"memcpy into shared memory": lambda: _copy(array), "gpulease broadcast": lambda: _give(array)}, rounds
    )
    show(copies, "memcpy into shared memory")
    report.ratio(
        f"{shared} / one copy into shared memory", copies, "gpulease broadcast", ["memcpy into shared memory"], 1.3
    )


def _copy(array: Any) -> None:
    segment = shared_memory.SharedMemory(create=True, size=array.nbytes)
    _view(segment)[:] = array
    segment.unlink()


def _give(array: Any) -> None:
    """What a pool does with shared data at its start: pickle, copy, and what each worker does to have it."""
    from gpulease.pool.pickling import from_body
    from gpulease.pool.plan import make_plan
    from gpulease.pool.worker_group import make_setup

    plan = make_plan(WORKERS, 1, {}, None, (), {"array": array}, 1)
    setup, memory = make_setup(plan)
    assert memory is not None
    for _ in range(WORKERS):
        assert from_body(setup["shared"], (os.dup(memory),))["array"][-1] == array[-1]
    os.close(memory)


Results = Iterator[list[tuple[float, int, int]]]


@contextmanager
def _with_gpulease(array: Any) -> Results:
    with gpulease.Pool(gpus=WORKERS, shared={"array": array}) as pool:
        yield list(pool.map(total_of_shared, range(ITEMS)))


@contextmanager
def _with_initargs(array: Any) -> Results:
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, initializer=keep, initargs=(array,)) as pool:
        yield list(pool.imap(total_of_global, range(ITEMS)))


@contextmanager
def _with_shared_memory(array: Any) -> Results:
    segment = shared_memory.SharedMemory(create=True, size=array.nbytes)
    _view(segment)[:] = array
    context = multiprocessing.get_context("spawn")
    with context.Pool(WORKERS, initializer=attach, initargs=(segment.name,)) as pool:
        yield list(pool.imap(total_of_global, range(ITEMS)))
    segment.unlink()


@contextmanager
def _with_ray(array: Any) -> Results:
    ray = _ray()
    reference = ray.put(array)
    remote = ray.remote(_look)
    yield ray.get([remote.remote(reference, number) for number in range(ITEMS)])
    del reference


BROADCASTS = {
    "gpulease shared=": _with_gpulease,
    "multiprocessing initargs": _with_initargs,
    "shared_memory": _with_shared_memory,
    "ray.put": _with_ray,
}


def main(report: Report, rounds: int, calls: int, count: int, size: int, items: list[str] | None) -> None:
    compile_everything(report.quick)
    if items is not None:
        return compare_items(report, rounds, count, items)
    with scratch() as folder:
        os.environ.update(GPULEASE_DIR=str(folder / "broker"), GPULEASE_SIMULATE=str(WORKERS))
        print(f"{calls:,} trivial calls on {WORKERS} warm workers")
        small_calls(report, rounds, calls)
        print(f"\nitems that take longer, on {WORKERS} warm workers")
        compare_items(report, rounds, count, [])
        print(f"\n{size} MiB for {WORKERS} workers, read by {ITEMS} items")
        broadcast(report, rounds, size << 20)


def configure(parser: argparse.ArgumentParser) -> None:
    note = "only items that take longer, beside other versions of gpulease by their `src`"
    parser.add_argument("--items", nargs="*", metavar="SRC", help=note)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:  # a version in a process of its own
        print(json.dumps(items_of_5_ms_and_more(int(sys.argv[2]))))
    else:
        bench(
            __doc__,
            main,
            configure,
            rounds=Size(5, 1, "rounds"),
            calls=Size(10_000, 200, "small calls"),
            count=Size(200, 20, "items that take longer"),
            size=Size(400, 8, "MiB of the large array"),
        )
