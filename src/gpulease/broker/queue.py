"""The queue: jobs that wait in the line, run below a shell of their own, and are found again.

A part of the core: it changes state only by the core's commits, one event at a time. What is waiting is in the store
and in the planner's line, nowhere else; what is running is also here. How jobs end is in endings.py, how they are
killed and paused in killing.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from heapq import merge
from itertools import chain, islice
from typing import TYPE_CHECKING

from gpulease import identity
from gpulease import job as jobs
from gpulease.broker import journal, spawn, trees
from gpulease.broker.batch import Batch
from gpulease.broker.endings import Endings
from gpulease.broker.hostmemory import HostMemory
from gpulease.broker.killing import Killing
from gpulease.broker.records import lease_document
from gpulease.broker.watching import Watching
from gpulease.job import Job
from gpulease.model import Lease, Owner, Waiting
from gpulease.planner import FORCED, Grant
from gpulease.stores.base import Change, Document

if TYPE_CHECKING:
    from gpulease.broker.core import Core

CHUNK = 5000  # jobs that are read from the store at a time
BATCHES = 31  # whose tokens are remembered, beside the newest
LOOK_AT_MEMORY = 5.0  # seconds between looks at the host's memory while it is low

Key = tuple[int, int | None]


class Queue:
    def __init__(self, core: Core, directory: str) -> None:
        self.core = core
        self.directory = os.path.join(directory, "jobs")
        self.running: dict[int, Job] = {}
        self.counts: dict[str, int] = {}
        self.number = 0
        self.batches: dict[str, tuple[int, int]] = {}  # the last ones that were added, by token: first and last id
        self.dependents: dict[int, set[int]] = {}
        self.by_key: dict[Key, int] = {}
        self.killing = Killing(self)
        self.endings = Endings(self)
        self.watching = Watching(core)
        self._memory = HostMemory()
        self._behind: dict[str, None] = {}  # in the line, behind a job that is not over
        self._environment_at_hand: tuple[str, dict[str, str]] = ("", {})
        self._groups: dict[int, tuple[str, ...]] = {}
        self._folders: set[int] = set()

    # ---------------------------------------------------------------- start

    def load(self) -> None:
        self.counts = self.core.store.count_jobs()
        last = self.core.store.jobs(most=1, newest=True)
        known = self.core.store.get("facts", "job") or {}
        self.number = max(last[0]["id"] if last else 0, known.get("value", 0))
        self.batches = {token: (first, last) for token, (first, last) in known.get("batches", {}).items()}
        self.endings.end_broken([broken for job in self.stored(("waiting",)) if (broken := self.join(job))])
        found = list(self.stored(("running", "paused")))
        notes = {uid: journal.read(self.journal(uid), uid) for uid in {job.uid for job in found}}
        census = trees.Census() if found else None
        for job in found:
            assert census is not None
            self._recover(job, notes[job.uid].get(job.run_name, journal.Fate()), census)

    def stored(self, states: tuple[str, ...]) -> Iterator[Job]:
        """Jobs from the store, a chunk at a time: there may be a hundred thousand."""
        first = 0
        while True:
            found = self.core.store.jobs(states, ids=[(first, 1 << 62)], most=CHUNK)
            yield from map(jobs.read, found)
            if len(found) < CHUNK:
                return
            first = found[-1]["id"] + 1

    def _recover(self, job: Job, told: journal.Fate, census: trees.Census) -> None:
        """A job that ran when the last broker ended: it runs on, or ended meanwhile, or never began."""
        lease = self.core.leases.get(job.planner_id)
        if lease is None or lease.owner.boot_id != self.core.boot_id:
            return self.endings.lost(job, "the machine was started anew")
        root = trees.Root(0, None, self.token(job), job.uid)
        pid = told.pid or census.find(root)
        if pid is None:
            return self.endings.not_begun(job)
        if not told.over and census.is_shell(pid, root) and self._adopt(job, pid, identity.start_time(pid)):
            return self.killing.go_on(self.running[job.id]) if job.ending else None
        # It ended meanwhile. What its shell noted last may have come after the journal was read.
        told = journal.read(self.journal(job.uid), job.uid).get(job.run_name, told)
        self.killing.clear_away(job._replace(pid=pid), told, None if told.over else census)

    def _adopt(self, job: Job, pid: int, start_time: int | None) -> bool:
        if not self.core.edge.watch(pid, start_time):
            return False
        self.running[job.id] = job._replace(pid=pid)
        self.by_key[(pid, start_time)] = job.id
        lease = self.core.leases[job.planner_id]
        self.core.leases[lease.id] = lease._replace(owner=lease.owner._replace(pid=pid, start_time=start_time))
        if job.time_limit is not None and job.started is not None:
            self.core.alarm(job.started + job.time_limit, "time-limit", str(job.id))
        self.core.look_again()
        return True

    # ---------------------------------------------------------------- the line

    def get(self, id: int) -> Job | None:
        if id in self.running:
            return self.running[id]
        found = self.core.store.get("jobs", str(id))
        return None if found is None else jobs.read(found)

    def add(self, batch: Batch, environment: tuple[str, Document], token: str | None = None) -> None:
        """All of them, in one commit, or none."""
        batches = dict(list(self.batches.items())[-BATCHES:])
        if token is not None:
            batches[token] = (batch.first, batch.last)
        facts = {"value": batch.last, "batches": batches}
        head = [Change("environments", *environment), Change("facts", "job", facts)]
        self.core.commit(chain(head, batch.changes()), [], durable=True)
        self.number, self.batches = batch.last, batches
        for job in batch:
            self.count(None, job.state)
            if job.state == "waiting":
                self.join(job)

    def join(self, job: Job) -> tuple[Job, str] | None:
        """Into the line; or, when it comes after one that failed, itself and why it can never start."""
        open_ones = []
        for id in job.after:
            other = self.get(id)
            if other is not None and not other.over:
                open_ones.append(id)
                self.dependents.setdefault(id, set()).add(job.id)
            elif other is not None and other.state != "complete" and not job.after_any:
                self.core.line.add(self._waiting(job, "It comes after a job that failed."))
                return job, self.endings.because(other)
        if open_ones:
            self._behind[job.planner_id] = None
        self.core.line.add(self._waiting(job, _comes_after(open_ones)))
        self.core.look_again()
        return None

    def leave(self, job: Job) -> None:
        """Out of the line."""
        self.core.line.remove(job.planner_id)
        self._behind.pop(job.planner_id, None)
        for id in job.after:
            self.dependents.get(id, set()).discard(job.id)

    def _waiting(self, job: Job, blocked: str | None = None) -> Waiting:
        groups = self._groups_of(job.uid)
        place, forced, bound = job.place, job.forced, job.bound
        return Waiting(
            job.planner_id, job.request, job.user, job.uid, job.added, groups, "job", place, blocked, forced, bound
        )  # fmt: skip

    def _groups_of(self, uid: int) -> tuple[str, ...]:
        """Quotas are counted by them."""
        if uid not in self._groups:
            self._groups[uid] = identity.group_names(uid)
        return self._groups[uid]

    def closed(self) -> dict[str, str]:
        """Why no job starts at all, if so."""
        if not self.counts.get("waiting"):
            return {}
        if self.core.settings.paused:
            return dict.fromkeys(("job", FORCED), "The queue is paused; `gpulease resume --queue` goes on.")
        keep = self.core.settings.keep_memory
        free = self._memory.free(self.core.now())
        if free is not None and free < keep:
            self.core.alarm(self.core.now() + LOOK_AT_MEMORY, "plan")
            return {"job": f"Host memory is low: {free:.0%} is free, and {keep:.0%} is kept."}
        return {}

    def put(self, job: Job, before: Job) -> None:
        """Write a changed job; in memory too, where it is there."""
        self.core.commit([Change("jobs", str(job.id), jobs.stored(job))], [])
        self.count(before.state, job.state)
        if job.id in self.running:
            self.running[job.id] = job

    def change(self, job: Job, before: Job) -> None:
        """Write a changed job that waits or is held, and its place in the line."""
        self.put(job, before)
        if before.state == "waiting":
            self.leave(before)
        if job.state == "waiting" and (broken := self.join(job)):
            self.endings.end_broken([broken])

    def first_waiting(self, most: int) -> list[Waiting]:
        """The front of the line as people see it: forced ones, then by priority and arrival, then the blocked."""
        line = self.core.line
        found = sorted(line.forced.values(), key=lambda entry: (entry.since, entry.id))[:most]
        for priority in sorted(line.tiers):
            families = line.tiers[priority].parties.values()
            ordered = merge(*(queues.arrival for party in families for queues in party.values()))
            found += [line[entry.id] for _, entry in islice(ordered, max(0, most - len(found)))]
        for id in self._behind:
            if len(found) < most and id in line and line[id].blocked is not None:
                found.append(line[id])
        return found

    # ---------------------------------------------------------------- starting

    def prepare(self, grant: Grant, now: float) -> tuple[Lease, Job, Job]:
        """The lease and the job as they will be, to be committed before anything is started."""
        before = self.get(int(grant.id[1:]))
        assert before is not None
        labels = tuple(self.core.labels(grant.devices))
        job, _ = jobs.step(
            before, "start", now, tries=before.tries + 1, run=before.run + 1, started=now, devices=labels, ended=None,
            exit_code=None, signal=None, why=None, out_of_memory=False, forced=False, bound=False, place=None,
            log_begin=_size(before.log),
        )  # fmt: skip
        owner = Owner(job.uid, job.user, self.core.host, self.core.boot_id, groups=self._groups_of(job.uid))
        request = job.request
        lease = Lease(
            grant.id, "job", grant.devices, owner, now, None, grant.memory, request.priority, job.note,
            request.duration, request.max_leases,
        )  # fmt: skip
        return lease, job, before

    @staticmethod
    def changes(lease: Lease, job: Job) -> list[Change]:
        return [Change("leases", lease.id, lease_document(lease)), Change("jobs", str(job.id), jobs.stored(job))]

    def launch(self, job: Job, before: Job) -> None:
        """Start what was just committed as running."""
        self.count(before.state, job.state)
        self._behind.pop(job.planner_id, None)
        self.running[job.id] = job
        try:
            self._prepare_folder(job.uid)
            words = spawn.words_for(self.journal(job.uid), job.run_name, job.log, job.cwd, job.command)
            pid = spawn.start(words, self._environment(job), job.uid)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self.endings.finish(job, "cannot-start", why=f"it could not be started: {error}")
        if not self._adopt(job, pid, identity.start_time(pid)):
            self.killing.clear_away(job._replace(pid=pid), journal.Fate(pid), trees.Census())

    def _environment(self, job: Job) -> dict[str, str]:
        """The submitter's, with what every job gets at its beginning, where the mark is quickly found."""
        given = self._given(job)
        return {**given, **self.environment(job), **given}

    def environment(self, job: Job) -> dict[str, str]:
        """The last one is kept at hand: jobs of one batch share theirs."""
        if self._environment_at_hand[0] != job.environment:
            self._environment_at_hand = (job.environment, self.core.store.get("environments", job.environment) or {})
        return self._environment_at_hand[1]

    def _given(self, job: Job) -> dict[str, str]:
        lease = self.core.leases[job.planner_id]
        return {
            "GPULEASE_TOKEN": self.token(job),
            "GPULEASE_JOB": str(job.id),
            "GPULEASE_LEASE": lease.id,
            "GPULEASE_DEVICES": ",".join(job.devices),
            **self._visible(lease),
            **spawn.home(job.uid),
        }

    def _visible(self, lease: Lease) -> dict[str, str]:
        """UUIDs, since an index means another card elsewhere; indices where the driver does not tell the UUIDs."""
        unknown = any(uuid.startswith("unknown-") for uuid in lease.devices)
        names = ",".join(self.core.labels(lease.devices) if unknown else lease.devices)
        vendors = {self.core.devices[uuid].vendor for uuid in lease.devices if uuid in self.core.devices}
        if vendors == {"amd"} and not unknown:
            return {"ROCR_VISIBLE_DEVICES": names}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": names}

    def token(self, job: Job) -> str:
        return f"{self.directory}:{job.run_name};"

    def journal(self, uid: int) -> str:
        return os.path.join(self.directory, str(uid), "journal")

    def default_log(self, uid: int, id: int) -> str:
        return os.path.join(self.directory, str(uid), f"{id}.log")

    def _prepare_folder(self, uid: int) -> None:
        """For the journal and the logs of one user, readable by that user only."""
        if uid in self._folders:
            return
        own = os.path.join(self.directory, str(uid))
        os.makedirs(self.directory, exist_ok=True)
        os.chmod(self.directory, 0o755)  # whatever the umask is: its users must get to their own folders
        os.makedirs(own, 0o700, exist_ok=True)
        if uid != os.geteuid():
            os.chown(own, uid, -1)
        self._folders.add(uid)

    # ---------------------------------------------------------------- counting and seeing

    def seen(self) -> None:
        """A sample came in: remember the most memory that each job was seen to use."""
        for id, job in self.running.items():
            lease = self.core.leases.get(job.planner_id)
            used = 0 if lease is None else sum(self._used(job, uuid, lease.memory is None) for uuid in lease.devices)
            if used > (job.peak_memory or 0):
                self.running[id] = job._replace(peak_memory=used)

    def _used(self, job: Job, uuid: str, whole: bool) -> int:
        """On a whole device all of its user's processes are the job's; on a share those of its session."""
        device = self.core.devices.get(uuid)
        found = 0
        for process in (device.processes if device is not None else None) or ():
            if process.user == job.user and (whole or _session(process.pid) == job.pid):
                found += process.memory or 0
        return found

    def count(self, before: str | None, after: str | None) -> None:
        for state, change in ((before, -1), (after, 1)):
            if state is not None:
                self.counts[state] = self.counts.get(state, 0) + change


def _comes_after(ids: list[int]) -> str | None:
    return f"It comes after job {', '.join(map(str, ids))}." if ids else None


def _session(pid: int) -> int | None:
    found = identity.family(pid)
    return None if found is None else found.session


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
