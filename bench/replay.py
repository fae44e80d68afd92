"""Replay a trace of GPU jobs in simulated time: the real planner beside textbook policies.

    python bench/replay.py [TRACE.csv] [--gpus 24 --hosts 3] [--declared none|exact|1-3x]
    python bench/replay.py [TRACE.csv] --ensemble 10 [--sizes 24,32]

With no trace it makes a seeded one of the same shape. Strict FIFO and greedy know no run times; EASY
and shortest-job-first know them exactly; the planner sees only what `--declared` says, and what it has learnt of
earlier jobs with the same attributes in the trace.

One run says little near full load. In the ensemble each policy is run on the same N copies of the trace, whose
arrivals are shifted by up to an hour, for each size; the table has the mean over them, that beside greedy and beside
clairvoyant shortest first, the worst of N beside greedy's on the same copy, and how many starts came by the times that
were told.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")

import argparse
from collections.abc import Sequence

from interleaved import compile_everything
from replay_ensemble import DECLARED, Row, ensemble_rows, lines
from replay_figures import Figures, figures
from replay_planner import Replay
from replay_textbook import Textbook
from replay_trace import DENSE_FROM, Job, declare, read, scale, synthesize
from report import TIMES, Report, Size, bench

from gpulease.planner import Policy

TEXTBOOK = {
    "strict FIFO": "fifo",
    "greedy": "greedy",
    "EASY backfill, exact": "easy",
    "shortest job first, exact": "sjf",
}
HEADINGS = ("mean wait", "p95 wait", "slowdown", "wide mean", "wide worst", "worst wait", "utilization")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--gpus", type=int, default=24)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--declared", choices=("none", "exact", "1-3x"), default="none")
    parser.add_argument("--seed", type=int, default=1, help="of declared times, and of a trace that is made")
    parser.add_argument("--from", dest="start", type=float, default=DENSE_FROM, help="first creation_time")
    parser.add_argument("--load", type=float, default=1.0, help="jobs arrive this many times as fast")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a policy setting")


def jobs_of(options: argparse.Namespace) -> list[Job]:
    if options.trace is not None:
        jobs = read(options.trace, options.start)
    else:
        jobs = synthesize(options.seed, options.jobs, 0.75 * options.gpus)
    widest = options.gpus // options.hosts
    return scale([job for job in jobs if job.gpus <= widest], options.load)


def policy_of(settings: list[str]) -> Policy:
    pairs = [setting.partition("=")[::2] for setting in settings]
    return Policy()._replace(**{name: type(getattr(Policy(), name))(value) for name, value in pairs})


def compare(jobs: Sequence[Job], options: argparse.Namespace) -> dict[str, Figures]:
    gpus, hosts = options.gpus, options.hosts
    results = {name: figures(jobs, Textbook(jobs, gpus, hosts, rule).run(), gpus) for name, rule in TEXTBOOK.items()}
    declared = declare(list(jobs), options.declared, options.seed)
    waits = Replay(declared, gpus, hosts, policy_of(options.set)).run()
    results[f"gpulease, declared {options.declared}"] = figures(jobs, waits, gpus)
    return results


def show_one(results: dict[str, Figures]) -> None:
    print(f"{'':28}" + "".join(f"{heading:>13}" for heading in HEADINGS))
    for name, found in results.items():
        waits = [f"{value:13,.0f}" for value in found]
        waits[2], waits[6] = f"{found.mean_bounded_slowdown:13.2f}", f"{found.utilization:13.2f}"
        print(f"{name:28}" + "".join(waits))


def tell(report: Report, rows: Sequence[Row]) -> None:
    """The planner's rows; where nobody waits there is nothing to compare."""
    for row in (row for row in rows if row.policy in DECLARED):
        what = f"{row.gpus} GPUs, times declared: {row.policy}"
        for wait, ratios in {"mean": row.mean_waits, "longest": row.longest_waits}.items():
            if ratios:
                report.value(f"{what}, {wait} wait / greedy", ratios, TIMES)


def main(report: Report, ensemble: int, sizes: str, **rest: object) -> None:
    options = argparse.Namespace(**rest)
    if options.hosts < 1 or options.gpus < options.hosts or options.gpus % options.hosts:
        sys.exit("replay: --gpus must be a multiple of --hosts, both at least 1.")
    compile_everything(report.quick)
    try:
        jobs = jobs_of(options)
        results = compare(jobs, options)
    except (OSError, KeyError, IndexError, ValueError) as error:
        sys.exit(f"replay: the trace cannot be read ({type(error).__name__}: {error}).")
    show_one(results)
    report.tables["one run"] = {name: found._asdict() for name, found in results.items()}
    if ensemble:
        rows = ensemble_rows(jobs, [int(size) for size in sizes.split(",")], ensemble, policy_of(options.set))
        print("", *lines(rows), sep="\n")
        report.tables["ensemble"] = [{"gpus": row.gpus, "policy": row.policy, **row.cells} for row in rows]
        tell(report, rows)


if __name__ == "__main__":
    bench(
        __doc__,
        main,
        configure,
        ensemble=Size(5, 2, "copies of the trace with other arrivals; 0: one run alone"),
        sizes=Size("24,32", "8", "GPUs, of hosts with eight each, of the ensemble"),
        jobs=Size(5000, 60, "jobs of a trace that is made"),
    )
