"""The figures of one replay: waits, bounded slowdown, utilization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from replay_trace import MILLI, Job

WIDE = 4  # GPUs
BOUND = 600.0  # seconds; a shorter run counts as this long in the slowdown


class Figures(NamedTuple):
    mean_wait: float
    p95_wait: float
    mean_bounded_slowdown: float
    wide_mean_wait: float
    wide_worst_wait: float
    worst_wait: float
    utilization: float


def figures(jobs: Sequence[Job], waits: Sequence[float], gpus: int) -> Figures:
    wide = [wait for job, wait in zip(jobs, waits, strict=True) if job.gpus >= WIDE] or [0.0]
    slow = [max(1.0, (wait + job.run) / max(job.run, BOUND)) for job, wait in zip(jobs, waits, strict=True)]
    work = sum(job.run * job.gpus * job.milli / MILLI for job in jobs)
    end = max(job.arrival + wait + job.run for job, wait in zip(jobs, waits, strict=True))
    return Figures(
        sum(waits) / len(waits),
        sorted(waits)[int(0.95 * len(waits))],
        sum(slow) / len(slow),
        sum(wide) / len(wide),
        max(wide),
        max(waits),
        work / (gpus * (end - jobs[0].arrival)),
    )
