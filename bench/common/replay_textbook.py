"""Textbook policies on simulated hosts: strict FIFO, greedy, EASY backfill, shortest job first.

What the planner is compared with; nothing of the planner is used here.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from replay_trace import MILLI, Job


class Held(NamedTuple):
    end: float
    job: int
    host: int
    gpus: list[int]


class Hosts:
    """Free thousandths of each GPU, host by host; shares go to the tightest, the rest to the first host."""

    def __init__(self, gpus: int, hosts: int) -> None:
        self.free = [[MILLI] * (gpus // hosts) for _ in range(hosts)]

    def fit(self, job: Job) -> tuple[int, list[int]] | None:
        return self._share(job.milli) if job.milli < MILLI else self._whole(job.gpus)

    def _share(self, milli: int) -> tuple[int, list[int]] | None:
        fitting = [
            (free, host, gpu) for host, row in enumerate(self.free) for gpu, free in enumerate(row) if free >= milli
        ]
        return (min(fitting)[1], [min(fitting)[2]]) if fitting else None

    def _whole(self, gpus: int) -> tuple[int, list[int]] | None:
        for host, row in enumerate(self.free):
            idle = [gpu for gpu, free in enumerate(row) if free == MILLI]
            if len(idle) >= gpus:
                return host, idle[:gpus]
        return None

    def change(self, host: int, gpus: Sequence[int], milli: int) -> None:
        for gpu in gpus:
            self.free[host][gpu] += milli


class Textbook:
    """One replay under one rule: `fifo`, `greedy`, `easy` or `sjf`."""

    def __init__(self, jobs: Sequence[Job], gpus: int, hosts: int, rule: str) -> None:
        self.jobs = jobs
        self.rule = rule
        self.hosts = Hosts(gpus, hosts)
        self.running: list[Held] = []
        self.waits = [0.0] * len(jobs)
        self.line: list[int] = []

    def run(self) -> list[float]:
        arrived = 0
        while arrived < len(self.jobs) or self.line:
            now = min(
                self.jobs[arrived].arrival if arrived < len(self.jobs) else inf,
                self.running[0].end if self.running else inf,
            )
            self._finish(now)
            while arrived < len(self.jobs) and self.jobs[arrived].arrival <= now:
                self.line.append(arrived)
                arrived += 1
            self._start(now)
        return self.waits

    def _finish(self, now: float) -> None:
        while self.running and self.running[0].end <= now:
            held = heapq.heappop(self.running)
            self.hosts.change(held.host, held.gpus, self.jobs[held.job].milli)

    def _start(self, now: float) -> None:
        if self.rule == "sjf":
            self.line.sort(key=lambda at: self.jobs[at].run)
        left: list[int] = []
        refused: set[tuple[int, int]] = set()
        for position, at in enumerate(self.line):
            job = self.jobs[at]
            found = None if (job.gpus, job.milli) in refused else self.hosts.fit(job)
            if found is not None:
                self._take(at, *found, now)
                continue
            left.append(at)
            refused.add((job.gpus, job.milli))
            if self.rule == "fifo":
                left.extend(self.line[position + 1 :])
                break
            if self.rule == "easy":
                left.extend(self._backfill(at, self.line[position + 1 :], now))
                break
        self.line = left

    def _take(self, at: int, host: int, gpus: list[int], now: float) -> None:
        job = self.jobs[at]
        self.hosts.change(host, gpus, -job.milli)
        heapq.heappush(self.running, Held(now + job.run, at, host, gpus))
        self.waits[at] = now - job.arrival

    def _backfill(self, head: int, others: list[int], now: float) -> list[int]:
        """Start whoever ends before the head can start, or leaves it room to start then all the same."""
        moment = self._shadow(self.jobs[head])
        left: list[int] = []
        for at in others:
            job = self.jobs[at]
            found = self.hosts.fit(job)
            if found is not None and now + job.run > moment and not self._harmless(head, job, found, moment):
                found = None
            if found is None:
                left.append(at)
            else:
                self._take(at, *found, now)
        return left

    def _harmless(self, head: int, job: Job, found: tuple[int, list[int]], moment: float) -> bool:
        kept = self.hosts.free
        self.hosts.free = [list(row) for row in kept]
        for held in self.running:
            if held.end <= moment:
                self.hosts.change(held.host, held.gpus, self.jobs[held.job].milli)
        self.hosts.change(*found, -job.milli)
        fits = self.hosts.fit(self.jobs[head]) is not None
        self.hosts.free = kept
        return fits

    def _shadow(self, job: Job) -> float:
        """When the head will fit if nobody else starts."""
        kept = self.hosts.free
        self.hosts.free = [list(row) for row in kept]
        for held in sorted(self.running):
            self.hosts.change(held.host, held.gpus, self.jobs[held.job].milli)
            if self.hosts.fit(job) is not None:
                self.hosts.free = kept
                return held.end
        raise ValueError(f"no host can ever run a job of {job.gpus} GPUs")
