"""A replay through the real planner, in simulated time.

The planner sees a request, its arrival and what was declared; never how long a job really runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import inf

from replay_trace import MILLI, Job

from gpulease.model.values import Device, Lease, Owner, Request, Waiting
from gpulease.planner import DeviceView, Line, Plan, Policy, lease_of, plan
from gpulease.planner.forecast import Start, judged
from gpulease.planner.lengths import EMPTY, Lengths, Sketch, learned, seen

OWNER = Owner(1, "somebody", "host", "boot")


class Replay:
    """`told`: each that has to wait is told when it should start, and that is compared with what comes."""

    def __init__(self, jobs: Sequence[Job], gpus: int, hosts: int, policy: Policy, told: bool = False) -> None:
        self.jobs = jobs
        self.told, self.said = told, dict[str, tuple[float, Start]]()
        self.judged: list[dict[str, float]] = []
        self.policy = policy._replace(memory_reserve=0.0)  # a share is a part of the GPU, with no driver on it
        names = [(host, at) for host in range(hosts) for at in range(gpus // hosts)]
        self.devices = [Device(at, f"{host}-{at}", "GPU", memory_total=MILLI, memory_used=0) for host, at in names]
        self.views = {f"{host}-{at}": DeviceView(host=str(host)) for host, at in names}
        self.line = Line(policy)
        self.leases: dict[str, Lease] = {}
        self.ends: list[tuple[float, str]] = []
        self.waits = [0.0] * len(jobs)
        self.plans = 0
        self.sketches: dict[str, Sketch] = {}

    def run(self) -> list[float]:
        arrived = 0
        wakeup: float | None = None
        while arrived < len(self.jobs) or len(self.line):
            now = min(
                self.jobs[arrived].arrival if arrived < len(self.jobs) else inf,
                self.ends[0][0] if self.ends else inf,
                inf if wakeup is None else wakeup,
            )
            while self.ends and self.ends[0][0] <= now:
                end, id = heapq.heappop(self.ends)
                self.sketches |= learned(self.sketches, self.leases.pop(id), end)
            while arrived < len(self.jobs) and self.jobs[arrived].arrival <= now:
                self.line.add(self._waiting(arrived, now))
                arrived += 1
            done = self._plan(now)
            self._tell(done, now)
            wakeup = done.next_wakeup
        return self.waits

    def _plan(self, now: float) -> Plan:
        done = plan(
            self.devices, self.leases.values(), self.line, self.policy, now, views=self.views, sketches=self.sketches
        )
        self.plans += 1
        for grant in done.grants:
            waiting = self.line.remove(grant.id)
            self.leases[grant.id] = lease_of(grant, waiting, OWNER, now)
            self._compare(grant.id, now)
            job = self.jobs[int(grant.id)]
            heapq.heappush(self.ends, (now + job.run, grant.id))
            self.waits[int(grant.id)] = now - job.arrival
        return done

    def _tell(self, done: Plan, now: float) -> None:
        """Whoever has not been told yet, and can be."""
        for waiting in self.line if self.told else ():
            if waiting.id not in self.said and (start := done.expected_start(waiting.id)) is not None:
                self.said[waiting.id] = now, start

    def _compare(self, id: str, now: float) -> None:
        if id in self.said:
            found = judged(*self.said.pop(id), now)
            self.judged.append(found)
            for name, amount in found.items():
                self.sketches[name] = seen(self.sketches.get(name, EMPTY), amount, now)

    def _waiting(self, at: int, now: float) -> Waiting:
        job = self.jobs[at]
        memory = job.milli if job.milli < MILLI else None
        request = Request(gpus=job.gpus, memory=memory, duration=job.declared)
        lengths = Lengths(self.sketches, (), now)
        expected = None if job.declared is None else lengths.declared(OWNER.user, job.declared)
        return Waiting(f"{at:06}", request, OWNER.user, OWNER.uid, job.arrival, shape=job.kind, expected=expected)
