"""Every policy on the same copies of a trace, and what they come to on average."""

from __future__ import annotations

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
from gpulease.planner.forecast import BY_LATEST, BY_LIKELY

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


class Row(NamedTuple):
    """One policy on all copies, beside greedy on the same copies: cells of the table, and ratios copy by copy."""

    gpus: int
    policy: str
    cells: dict[str, float | None]
    mean_waits: list[float]
    longest_waits: list[float]


HEADS = ("mean wait", "+-", "/greedy", "/exact", "worst of N", "wide/greedy", "worst wait", "by likely", "by latest")


def ensemble_rows(jobs: Sequence[Job], sizes: Sequence[int], copies: int, policy: Policy) -> list[Row]:
    names = (*TEXTBOOK, *DECLARED)
    rows = []
    for gpus in sizes:
        with Pool() as pool:
            tasks = [(name, seed) for name in names for seed in range(copies)]
            done = pool.map(partial(run, jobs, gpus, policy), tasks, chunksize=1)
        by_name = {name: done[at * copies : (at + 1) * copies] for at, name in enumerate(names)}
        rows += [_row(gpus, name, by_name) for name in names]
    return rows


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """A table of them; where nobody waits to compare with, there is no ratio."""
    yield f"{'':32}" + "".join(f"{head:>12}" for head in HEADS)
    for row in rows:
        name = f"{row.gpus} GPUs, {'declared ' if row.policy in DECLARED else ''}{row.policy}"
        yield f"{name:32}" + "".join(_cell(head, row.cells[head]) for head in HEADS)


def _cell(head: str, value: float | None) -> str:
    return f"{'-':>12}" if value is None else f"{value:12,.{0 if head in ('mean wait', '+-') else 2}f}"


def _row(gpus: int, name: str, by_name: dict[str, list[Outcome]]) -> Row:
    mine, greedy, exact = (by_name[one] for one in (name, *TEXTBOOK))
    waits = [one.figures.mean_wait for one in mine]
    told = sum(one.told for one in mine)
    beside = _copy_by_copy(mine, greedy, "mean_wait")
    cells = {
        "mean wait": mean(waits),
        "+-": stdev(waits) if len(waits) > 1 else 0.0,
        "/greedy": _ratio(mean(waits), _mean(greedy, "mean_wait")),
        "/exact": _ratio(mean(waits), _mean(exact, "mean_wait")),
        "worst of N": max(beside, default=None),
        "wide/greedy": _ratio(_mean(mine, "wide_mean_wait"), _mean(greedy, "wide_mean_wait")),
        "worst wait": _ratio(_worst(mine), _worst(greedy)),
        "by likely": _ratio(sum(one.by_likely for one in mine), told),
        "by latest": _ratio(sum(one.by_latest for one in mine), told),
    }
    return Row(gpus, name, cells, beside, _copy_by_copy(mine, greedy, "worst_wait"))


def _copy_by_copy(mine: list[Outcome], others: list[Outcome], field: str) -> list[float]:
    """Of the copies on which somebody waits with the others."""
    pairs = [(getattr(a.figures, field), getattr(b.figures, field)) for a, b in zip(mine, others, strict=True)]
    return [ours / theirs for ours, theirs in pairs if theirs]


def _worst(outcomes: list[Outcome]) -> float:
    return max(one.figures.worst_wait for one in outcomes)


def _ratio(ours: float, theirs: float) -> float | None:
    return ours / theirs if theirs else None


def _mean(outcomes: list[Outcome], field: str) -> float:
    return mean(float(getattr(one.figures, field)) for one in outcomes)
