"""The running jobs, and what is known of all others: waiting jobs are in the store and in the queue only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import inf

from gpulease.broker.core.state.tables import Part, Table, at_hand, cell, table
from gpulease.broker.core.values import BatchParts, BatchRange, Cap, Delay, PeakMemory, PendingBatch, Run
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Which

AT_ONCE = 200  # jobs that the store is asked for


class Jobs(Part):
    running: Table[int, Job] = table()
    seen: Table[int, PeakMemory] = table()  # of those that run packed
    counts: Table[str, int] = table()  # by state
    open: Table[int, int] = table()  # that are not over, by user
    over: Table[int, int] = table()  # the others, by user
    number: int = cell(0)  # of the last one
    # Runs
    runs: Table[int, Run] = table()  # of each that runs
    delays: Table[str, Delay] = table(planned=True)  # by user: nothing of theirs can be started now
    halts: Table[str, float] = table(planned=True)  # by kind and user: until when a kill of many is under way
    notes_to_remove: Table[int, None] = table()  # users of whom something ended
    runs_due: float = cell(inf)  # the first of their deadlines, for which an alarm is set
    tree_check_due: bool = cell(False)  # an alarm for that is set
    # What comes after what
    dependents: Table[int, dict[int, None]] = table()  # by job that is not over: who comes after it
    awaited: Table[int, dict[int, None]] = table()  # by who comes after others: which are not over
    followed: Table[int, dict[int, None]] = table()  # by job that is over: who waits for others still
    caps: Table[int, Cap] = table(planned=True)  # by sweep: how many of its jobs run at a time
    # Batches
    batches: Table[str, BatchRange] = table()  # that were added lately, by token
    adding: Table[Peer, PendingBatch] = table()
    parts: Table[Peer, BatchParts] = table()
    environments: Table[int, int] = table()  # by user: characters of those that are kept
    _read: dict[int, Job | None] = at_hand()  # from the store, in this turn
    _states: dict[int, str | None] = at_hand()  # the same: many may come after the same
    _environment: dict[str, dict[str, str]] = at_hand()  # the last one that was read, by its key

    def end_turn(self) -> None:
        self._read.clear()
        self._states.clear()

    def get(self, id: int) -> Job | None:
        if id in self.running:
            return self.running[id]
        if id not in self._read:
            found = self.store.get("jobs", str(id))
            self._read[id] = None if found is None else model_jobs.read(found)
        return self._read[id]

    def environment(self, job: Job) -> dict[str, str]:
        """The submitter's. The last one is kept at hand: jobs of one batch share theirs."""
        if job.spec.environment not in self._environment:
            found = self.store.get("environments", job.spec.environment)
            if found is None:
                return {}
            self._environment.clear()
            self._environment[job.spec.environment] = found
        return self._environment[job.spec.environment]

    def keep_environment(self, uid: int, key: str, environ: dict[str, str]) -> None:
        """Of one user's jobs; `key` begins with the user's number, so that it can be counted when it is forgotten."""
        self.store.write("environments", key, environ)
        self._count_environment(uid, size_of(environ))

    def forget_environments(self, keys: Iterable[str]) -> None:
        """The environments that no job uses any more."""
        for key, environ in self.store.forget_environments(keys).items():
            self._uncount_environment(key, environ)

    def drop_environments(self, keys: Iterable[str]) -> None:
        """Though ended jobs have them."""
        for key in keys:
            environ = self.store.get("environments", key)
            if environ is not None:
                self.store.write("environments", key, None)
                self._uncount_environment(key, environ)

    def has_environment(self, job: Job) -> bool:
        key = job.spec.environment
        return key in self._environment or self.store.get("environments", key) is not None

    def _uncount_environment(self, key: str, environ: dict[str, str]) -> None:
        self._environment.pop(key, None)
        self._count_environment(int(key.partition(".")[0]), -size_of(environ))

    def _count_environment(self, uid: int, size: int) -> None:
        self.environments.put(uid, self.environments.get(uid, 0) + size)
        self.store.write("facts", "environments", {str(user): size for user, size in self.environments.items() if size})

    def write(self, job: Job, before: Job | None) -> None:
        self._read.pop(job.id, None)
        self._states.pop(job.id, None)
        self.store.write("jobs", str(job.id), model_jobs.stored(job))
        self.change(job, before)

    def change(self, job: Job, before: Job | None) -> None:
        """In memory only: what may be forgotten, or was written already."""
        self.count(job.uid, None if before is None else before.state, job.state)
        if job.state in model_jobs.RUNNING:
            self.running.put(job.id, job)
        else:
            self.running.drop(job.id)

    def forget(self, job: Job) -> None:
        self._read.pop(job.id, None)
        self._states.pop(job.id, None)
        self.store.write("jobs", str(job.id), None)
        self.followed.drop(job.id)
        self.count(job.uid, job.state, None)

    def count(self, uid: int, before: str | None, after: str | None, number: int = 1) -> None:
        if before == after:
            return
        for state, change in ((before, -number), (after, number)):
            if state is not None:
                self.counts.put(state, self.counts.get(state, 0) + change)
                of_user = self.open if state in model_jobs.OPEN else self.over
                of_user.put(uid, of_user.get(uid, 0) + change)

    def shell(self, id: int) -> tuple[int | None, int | None]:
        """Pid and start time of a job's shell, once they are known."""
        return self.runs.get(id, Run()).shell

    def states(self, ids: Sequence[int]) -> dict[int, str | None]:
        """In which state each of them is; None for one that is not there."""
        missing = [id for id in ids if id not in self._states]
        for at in range(0, len(missing), AT_ONCE):
            some = missing[at : at + AT_ONCE]
            self._states.update(dict.fromkeys(some))
            self._states.update({row.id: row.state for row in self.store.job_rows(Which(ids=[(i, i) for i in some]))})
        return {id: self._states[id] for id in ids}

    def add_dependencies(self, dependent: int, open_ones: Iterable[int], over: Iterable[int]) -> None:
        """A job that waits for others."""
        found = dict.fromkeys(open_ones)
        if not found:
            return
        self.awaited.put(dependent, found)
        for links, many in ((self.dependents, found), (self.followed, over)):
            for id in many:
                self._link(links, id, dependent)

    def met(self, id: int, dependent: int) -> int:
        """Job `id`, which it came after, is over; how many others are not."""
        left = self.awaited[dependent]
        del left[id]
        self.changes.add(left.__setitem__, id, None)
        self._unlink(self.dependents, id, dependent)
        self._link(self.followed, id, dependent)
        return len(left)

    def drop_dependencies(self, dependent: int, others: Iterable[int]) -> None:
        self.awaited.drop(dependent)
        for id in others:
            for links in (self.dependents, self.followed):
                self._unlink(links, id, dependent)

    def _link(self, table: Table[int, dict[int, None]], id: int, dependent: int) -> None:
        if id not in table:
            table.put(id, {})
        found = table[id]
        if dependent not in found:
            found[dependent] = None
            self.changes.add(found.pop, dependent, None)

    def _unlink(self, table: Table[int, dict[int, None]], id: int, dependent: int) -> None:
        found = table.get(id, {})
        if dependent in found:
            del found[dependent]
            self.changes.add(found.__setitem__, dependent, None)
            if not found and table is self.followed:
                table.drop(id)

    def put_cap(self, sweep: int, cap: Cap | None) -> None:
        self.caps.put_or_drop(sweep, cap)
        self.store.write("facts", "caps", {str(id): list(one) for id, one in self.caps.items()})

    def add_batch(self, added: BatchRange, token: str | None, uid: int, kept: int) -> None:
        """Ids that were given to jobs; a client that sends them again by the same token gets the same."""
        if token is not None:
            mine = [one for one in self.batches if one.startswith(f"{uid} ") and one != token]
            for old in mine[: max(0, len(mine) - kept)]:
                self.batches.drop(old)
            self.batches.put(token, added)
        self.number = max(self.number, added.last)
        self.store.write("facts", "job", {"value": self.number, "batches": dict(self.batches)})
        self.changes.durable = self.changes.durable or added.next > added.last

    def gather(self, peer: Peer, parts: BatchParts | None) -> None:
        self.parts.put_or_drop(peer, parts)


def size_of(environ: dict[str, str]) -> int:
    """About as many bytes as it takes in the store."""
    return len(json.dumps(environ))
