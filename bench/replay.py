"""Replay a trace of GPU jobs in simulated time: the real planner beside textbook policies.

    python bench/replay.py TRACE.csv --gpus 24 --hosts 3 --declared none|exact|1-3x [--json]
    python bench/replay.py TRACE.csv --ensemble 10 [--sizes 24,32]

With no trace it makes a seeded one of the same shape. Strict FIFO and greedy know no run times; EASY
and shortest-job-first know them exactly; the planner sees only what `--declared` says, and what it has learnt of
earlier jobs with the same attributes in the trace.

One run says little near full load. With --ensemble N each policy is run on the same N copies of the trace, whose
arrivals are shifted by up to an hour, for each size; the table has the mean over them, that beside greedy and beside
clairvoyant shortest first, the worst of N beside greedy's on the same copy, and how many starts came by the times that
were told.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "common"))

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "bench")]

from replay_figures import Figures, figures
from replay_planner import Replay
from replay_textbook import Textbook
from replay_trace import DENSE_FROM, Job, declare, read, scale, synthesize

from gpulease.planner import Policy

TEXTBOOK = {
    "strict FIFO": "fifo",
    "greedy": "greedy",
    "EASY backfill, exact": "easy",
    "shortest job first, exact": "sjf",
}
HEADINGS = ("mean wait", "p95 wait", "slowdown", "wide mean", "wide worst", "worst wait", "utilization")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--gpus", type=int, default=24)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--declared", choices=("none", "exact", "1-3x"), default="none")
    parser.add_argument("--seed", type=int, default=1, help="of declared times, and of a trace that is made")
    parser.add_argument("--from", dest="start", type=float, default=DENSE_FROM, help="first creation_time")
    parser.add_argument("--load", type=float, default=1.0, help="jobs arrive this many times as fast")
    parser.add_argument("--jobs", type=int, default=5000, help="of a trace that is made")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a policy setting")
    parser.add_argument("--ensemble", type=int, default=0, metavar="N", help="N copies with other arrivals")
    parser.add_argument("--sizes", default="24,32", help="GPUs, of hosts with eight each, with --ensemble")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


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


def compare(options: argparse.Namespace) -> dict[str, Figures]:
    jobs = jobs_of(options)
    gpus, hosts = options.gpus, options.hosts
    results = {name: figures(jobs, Textbook(jobs, gpus, hosts, rule).run(), gpus) for name, rule in TEXTBOOK.items()}
    declared = declare(jobs, options.declared, options.seed)
    waits = Replay(declared, gpus, hosts, policy_of(options.set)).run()
    results[f"gpulease, declared {options.declared}"] = figures(jobs, waits, gpus)
    return results


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.hosts < 1 or options.gpus < options.hosts or options.gpus % options.hosts:
        sys.exit("replay: --gpus must be a multiple of --hosts, both at least 1.")
    if options.ensemble:
        from replay_ensemble import table

        sizes = [int(size) for size in options.sizes.split(",")]
        print("\n".join(table(jobs_of(options), sizes, options.ensemble, policy_of(options.set), options.json)))
        return 0
    try:
        results = compare(options)
    except (OSError, KeyError, IndexError, ValueError, UnicodeDecodeError) as error:
        sys.exit(f"replay: the trace cannot be read ({type(error).__name__}: {error}).")
    if options.json:
        print(json.dumps({name: found._asdict() for name, found in results.items()}, indent=2))
        return 0
    print(f"{'':28}" + "".join(f"{heading:>13}" for heading in HEADINGS))
    for name, found in results.items():
        waits = [f"{value:13,.0f}" for value in found]
        waits[2], waits[6] = f"{found.mean_bounded_slowdown:13.2f}", f"{found.utilization:13.2f}"
        print(f"{name:28}" + "".join(waits))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
