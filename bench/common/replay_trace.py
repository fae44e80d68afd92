"""Jobs to replay: from a trace of alibaba/clusterdata (cluster-trace-gpu-v2023), or a seeded one like it.

Not here: any decision. Run times that users declare are made here too, and the planner sees only those.
"""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import NamedTuple

DENSE_FROM = 10_298_377.0  # seconds; where the dense part of openb_pod_list_default.csv begins
MILLI = 1000  # of one GPU
ALIKE = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "qos")  # of the trace; equal ones are alike


class Job(NamedTuple):
    arrival: float
    run: float
    gpus: int
    milli: int  # share of one GPU; 1000 is whole
    declared: float | None = None
    kind: str | None = None  # what stands for "the same command"


def read(path: Path, start: float = DENSE_FROM) -> list[Job]:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["scheduled_time"] and int(row["num_gpu"]) > 0]
    jobs = [_job(row) for row in rows if float(row["creation_time"]) >= start]
    return sorted(jobs)


def _job(row: dict[str, str]) -> Job:
    gpus = int(row["num_gpu"])
    run = float(row["deletion_time"]) - float(row["scheduled_time"])
    kind = " ".join(row[name] for name in ALIKE)
    return Job(float(row["creation_time"]), run, gpus, int(row["gpu_milli"]) if gpus == 1 else MILLI, kind=kind)


def synthesize(seed: int, count: int = 5000, load: float = 18.0) -> list[Job]:
    """Heavy-tailed run times, mostly one GPU or less, now and then a whole host; `load` in GPUs."""
    chance = random.Random(seed)
    drafts = [_draft(chance) for _ in range(count)]
    work = sum(run * gpus * milli / MILLI for run, gpus, milli in drafts)
    moments = sorted(chance.uniform(0, work / load) for _ in drafts)
    return sorted(Job(at, run, gpus, milli) for at, (run, gpus, milli) in zip(moments, drafts, strict=True))


def _draft(chance: random.Random) -> tuple[float, int, int]:
    run = min(12 * 86400.0, max(5.0, chance.lognormvariate(6.2, 2.1)))
    kind = chance.random()
    if kind < 0.42:
        return run, 1, chance.choice((50, 160, 230, 320, 470, 470, 650, 810, 810, 810))
    if kind < 0.985:
        return run, 1, MILLI
    return run, chance.choice((2, 4, 8, 8, 8)), MILLI


def declare(jobs: list[Job], how: str, seed: int) -> list[Job]:
    """What users say of their run times: `none`, `exact`, or `1-3x`, seeded."""
    if how == "none":
        return jobs
    chance = random.Random(seed)
    factors = [1.0 if how == "exact" else chance.uniform(1, 3) for _ in jobs]
    return [job._replace(declared=job.run * factor) for job, factor in zip(jobs, factors, strict=True)]


def jitter(jobs: list[Job], seed: int, most: float = 3600.0) -> list[Job]:
    """The same jobs, each up to `most` seconds earlier or later."""
    chance = random.Random(seed)
    return sorted(job._replace(arrival=job.arrival + chance.uniform(-most, most)) for job in jobs)


def scale(jobs: list[Job], load: float) -> list[Job]:
    """The same jobs arriving `load` times as fast."""
    first = jobs[0].arrival
    return [job._replace(arrival=first + (job.arrival - first) / load) for job in jobs]
