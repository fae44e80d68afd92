"""Every policy on the same copies of a trace, and what they come to on average."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from multiprocessing import Pool
from statistics import mean, stdev
from typing import NamedTuple

from replay_figures import Figures, figures
from replay_planner import Replay
from replay_textbook import Textbook
from replay_trace import Job, declare, jitter

from gpulease.planner import Policy
from gpulease.planner.expected import BY_LATEST, BY_LIKELY

TEXTBOOK = {"greedy": "greedy", "shortest first, exact": "sjf"}
DECLARED = ("none", "1-3x")
HOST = 8  # GPUs


class Outcome(NamedTuple):
    figures: Figures
    told: int = 0  # starts that were compared with what was told
    by_likely: int = 0
    by_latest: int = 0


def run(jobs: Sequence[Job], gpus: int, policy: Policy, task: tuple[str, int]) -> Outcome:
    name, seed = task
    copy = jitter(list(jobs), seed)
    hosts = gpus // HOST
    if name in TEXTBOOK:
        return Outcome(figures(copy, Textbook(copy, gpus, hosts, TEXTBOOK[name]).run(), gpus))
    replay = Replay(declare(copy, name, seed), gpus, hosts, policy, told=True)
    found = figures(copy, replay.run(), gpus)
    by = [sum(one[key] < 1 for one in replay.judged) for key in (BY_LIKELY, BY_LATEST)]
    return Outcome(found, len(replay.judged), *by)


def table(jobs: Sequence[Job], sizes: Sequence[int], copies: int, policy: Policy, as_json: bool) -> Iterator[str]:
    names = (*TEXTBOOK, *DECLARED)
    rows = []
    for gpus in sizes:
        with Pool() as pool:
            tasks = [(name, seed) for name in names for seed in range(copies)]
            done = pool.map(partial(run, jobs, gpus, policy), tasks, chunksize=1)
        by_name = {name: done[at * copies : (at + 1) * copies] for at, name in enumerate(names)}
        rows += [_row(gpus, name, by_name) for name in names]
    if as_json:
        yield json.dumps(rows, indent=2)
        return
    heads = (
        "mean wait",
        "+-",
        "/greedy",
        "/exact",
        "worst of N",
        "wide/greedy",
        "worst wait",
        "by likely",
        "by latest",
    )
    yield f"{'':32}" + "".join(f"{head:>12}" for head in heads)
    for row in rows:
        name = f"{row['gpus']} GPUs, {row['policy']}"
        yield f"{name:32}" + "".join(f"{row[head]:12,.{0 if head in ('mean wait', '+-') else 2}f}" for head in heads)


def _row(gpus: int, name: str, by_name: dict[str, list[Outcome]]) -> dict[str, str | float | int]:
    mine, greedy, exact = (by_name[one] for one in (name, *TEXTBOOK))
    waits = [one.figures.mean_wait for one in mine]
    told = sum(one.told for one in mine) or 1
    return {
        "gpus": gpus,
        "policy": f"declared {name}" if name in DECLARED else name,
        "mean wait": mean(waits),
        "+-": stdev(waits) if len(waits) > 1 else 0.0,
        "/greedy": mean(waits) / mean(one.figures.mean_wait for one in greedy),
        "/exact": mean(waits) / mean(one.figures.mean_wait for one in exact),
        "worst of N": max(a.figures.mean_wait / b.figures.mean_wait for a, b in zip(mine, greedy, strict=True)),
        "wide/greedy": _mean(mine, "wide_mean_wait") / _mean(greedy, "wide_mean_wait"),
        "worst wait": max(one.figures.worst_wait for one in mine) / max(one.figures.worst_wait for one in greedy),
        "by likely": sum(one.by_likely for one in mine) / told,
        "by latest": sum(one.by_latest for one in mine) / told,
    }


def _mean(outcomes: list[Outcome], field: str) -> float:
    return mean(float(getattr(one.figures, field)) for one in outcomes) or 1.0
