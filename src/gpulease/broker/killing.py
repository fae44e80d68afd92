"""Ending, stopping and continuing all that a job started. Its devices are not free before all of it is gone."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from gpulease import job as jobs
from gpulease.broker import trees
from gpulease.broker.journal import Fate
from gpulease.job import Job
from gpulease.stores.base import Change

if TYPE_CHECKING:
    from gpulease.broker.queue import Queue

LOOK_AGAIN = 0.05  # seconds between looks at a tree that is being killed
PASSES = 5  # at most so many looks for processes that were born while their tree was being stopped


class Dying(NamedTuple):
    """A tree that is to go: by TERM first, or at once."""

    fate: Fate | None = None  # what its shell left; None while that lives
    at_once: bool = False  # the grace is over, or there was none


class Killing:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._core = queue.core
        self._dying: dict[int, Dying] = {}

    def forget(self, id: int) -> None:
        self._dying.pop(id, None)

    def kill(self, running: list[Job], why: str, remove: bool = False) -> None:
        """TERM to all of each, KILL after the grace. That it is to end is on disk before anybody hears of it."""
        ordered = [
            job._replace(ending=job.ending or why, removing=job.removing or remove)
            for job in running
            if job.id in self._queue.running
        ]
        if not ordered:
            return
        self._core.commit([Change("jobs", str(job.id), jobs.stored(job)) for job in ordered], [])
        census = trees.Census()
        for job in ordered:
            self._queue.running[job.id] = job
            self._begin(job, census)

    def go_on(self, job: Job) -> None:
        """The broker was killed while it killed this one."""
        self._begin(job, trees.Census())

    def _begin(self, job: Job, census: trees.Census) -> None:
        self._dying.setdefault(job.id, Dying())
        pids = census.tree(self._root(job))
        trees.send(_below(job, pids), signal.SIGTERM)
        trees.send(pids, signal.SIGCONT)
        self._core.alarm(self._core.now() + self._core.settings.grace, "grace", str(job.id))

    def grace_over(self, id: str) -> None:
        job, dying = self._queue.running.get(int(id)), self._dying.get(int(id))
        if job is not None and dying is not None:
            self._dying[job.id] = dying._replace(at_once=True)
            self._look(job, trees.Census())

    def shell_gone(self, job: Job, told: Fate) -> None:
        """A shell that noted the end of its command took nothing away; one that was killed may have left it behind."""
        dying = self._dying.get(job.id)
        if dying is None and (told.trouble is not None or (told.code is not None and told.code >= 0)):
            return self._queue.endings.judge(job, told)
        self._dying[job.id] = Dying(told, dying is None or dying.at_once)
        self._look(job, trees.Census())

    def clear_away(self, job: Job, told: Fate, census: trees.Census | None) -> None:
        """Its shell was gone when this broker came; without a census there is nothing to look for."""
        self._queue.running[job.id] = job
        self._dying[job.id] = Dying(told, True)
        if census is None and job.ending is None:
            return self._over(job, told)
        self._look(job, census or trees.Census())

    def look(self, id: str) -> None:
        job = self._queue.running.get(int(id))
        if job is not None and job.id in self._dying:
            self._look(job, trees.Census())

    def _look(self, job: Job, census: trees.Census) -> None:
        """Once its shell and all of its tree are gone, the job is."""
        dying = self._dying[job.id]
        left = census.tree(self._root(job))
        if dying.fate is not None and not left:
            return self._over(job, dying.fate)
        if dying.at_once:
            trees.send(_below(job, left), signal.SIGKILL)
        if dying.fate is not None or dying.at_once:
            self._core.alarm(self._core.now() + LOOK_AGAIN, "killed", str(job.id))
        return None

    def _over(self, job: Job, told: Fate) -> None:
        del self._dying[job.id]
        if job.ending is not None:
            return self._queue.endings.killed(job, job.ending, told)
        self._queue.endings.judge(job, told)

    def over_time(self, id: str) -> None:
        job = self._queue.running.get(int(id))
        if job is None or job.started is None or job.time_limit is None or job.ending is not None:
            return
        if job.started + job.time_limit <= self._core.now():
            self.kill([job], f"its time limit of {job.time_limit:g} s was over")

    # ---------------------------------------------------------------- pausing

    def pause(self, job: Job) -> None:
        paused, _ = jobs.step(job, "pause", self._core.now())
        self._queue.put(paused, job)
        stopped: set[int] = set()
        for _ in range(PASSES):
            fresh = set(trees.Census().tree(self._root(paused))) - stopped
            if not fresh:
                return
            trees.send(fresh, signal.SIGSTOP)
            stopped |= fresh

    def resume(self, job: Job) -> None:
        resumed, _ = jobs.step(job, "resume", self._core.now())
        self._queue.put(resumed, job)
        trees.send(trees.Census().tree(self._root(resumed)), signal.SIGCONT)

    def _root(self, job: Job) -> trees.Root:
        lease = self._core.leases.get(job.planner_id)
        since = None if lease is None else lease.owner.start_time
        return trees.Root(job.pid or 0, since, self._queue.token(job), job.uid)


def _below(job: Job, pids: Iterable[int]) -> list[int]:
    """All but the job's own shell, which notes how its command ended; the shell too once it is alone."""
    found = list(pids)
    return [pid for pid in found if pid != job.pid] or found
