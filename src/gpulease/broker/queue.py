"""The queue: jobs that wait in the line, run below a shell of their own, and are found again.

A part of the core: it changes state only by the core's commits, one event at a time. What is waiting is in the store
and in the planner's line, nowhere else; what is running is also here.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from gpulease import identity
from gpulease import job as jobs
from gpulease.broker import hooks, spawn
from gpulease.broker.records import lease_document
from gpulease.job import Job
from gpulease.model import Lease, Owner, Waiting
from gpulease.planner import Grant
from gpulease.stores.base import Change, Document, Event

if TYPE_CHECKING:
    from gpulease.broker.connection import Connection
    from gpulease.broker.core import Core

CHUNK = 5000  # jobs that are read from the store at a time
TAIL = 1 << 16  # bytes of a failed job's output that are searched for out-of-memory
TIDY = 5.0  # seconds until the status files of ended tries are removed
LOOK_AGAIN = 0.05  # seconds between looks at a tree that is being killed

Key = tuple[int, int | None]


class Killing(NamedTuple):
    why: str
    end: bool = False  # its shell is gone; the rest of its tree is not


class Watcher(NamedTuple):
    """A client that waits for jobs to end."""

    connection: Connection
    ids: set[int]
    ended: dict[int, Document]


class Queue:
    def __init__(self, core: Core, directory: str) -> None:
        self.core = core
        self.directory = os.path.join(directory, "jobs")
        self.running: dict[int, Job] = {}
        self.counts: dict[str, int] = {}
        self.number = 0
        self._by_key: dict[Key, int] = {}
        self._dependents: dict[int, set[int]] = {}
        self._killing: dict[int, Killing] = {}
        self._watchers: list[Watcher] = []
        self._litter: list[str] = []  # status files of tries that are over
        self.removing: set[int] = set()  # to be forgotten once they are gone
        self._behind: dict[str, None] = {}  # in the line, behind a job that is not over

    # ---------------------------------------------------------------- start

    def load(self) -> None:
        self.counts = self.core.store.count_jobs()
        last = self.core.store.jobs(most=1, newest=True)
        self.number = max(last[0]["id"] if last else 0, self.core.store.load("facts").get("job", {}).get("value", 0))
        for job in self.stored(("waiting",)):
            self._join(job)
        for job in list(self.stored(("running", "paused"))):
            self._recover(job)

    def stored(self, states: tuple[str, ...]) -> Iterator[Job]:
        """Jobs from the store, a chunk at a time: there may be a hundred thousand."""
        first = 0
        while True:
            found = self.core.store.jobs(states, ids=[(first, 1 << 62)], most=CHUNK)
            yield from map(jobs.read, found)
            if len(found) < CHUNK:
                return
            first = found[-1]["id"] + 1

    def _recover(self, job: Job) -> None:
        """A job that ran when the last broker ended: it runs on, or ended meanwhile, or never began."""
        lease = self.core.leases.get(job.planner_id)
        if lease is None or lease.owner.boot_id != self.core.boot_id:
            return self._finish(job, "lost", why="the machine was started anew", again=job.retry >= job.tries)
        told = spawn.fate(self._status(job))
        pid = told.pid or spawn.find_by_mark(self._token(job))
        if pid is None:
            self._finish(job._replace(tries=job.tries - 1), "retry-after-failure", why="it had not begun")
        elif told.code is not None:
            self._judge(job, told.code)
        elif pid in spawn.tree(pid, self._token(job)) and self._adopt(job, pid, identity.start_time(pid)):
            return
        else:
            self._judge(job, spawn.fate(self._status(job)).code)

    def _adopt(self, job: Job, pid: int, start_time: int | None) -> bool:
        if not self.core.edge.watch(pid, start_time):
            return False
        self.running[job.id] = job._replace(pid=pid)
        self._by_key[(pid, start_time)] = job.id
        lease = self.core.leases[job.planner_id]
        self.core.leases[lease.id] = lease._replace(owner=lease.owner._replace(pid=pid, start_time=start_time))
        if job.time_limit is not None and job.started is not None:
            self.core.alarm(job.started + job.time_limit, "time-limit", str(job.id))
        return True

    # ---------------------------------------------------------------- the line

    def get(self, id: int) -> Job | None:
        if id in self.running:
            return self.running[id]
        found = self.core.store.get("jobs", str(id))
        return None if found is None else jobs.read(found)

    def add(self, new: list[Job], environment: tuple[str, Document]) -> None:
        """All of them, in one commit, or none."""
        changes = [Change("environments", *environment)]
        changes += [Change("jobs", str(job.id), jobs.document(job)) for job in new]
        last = new[-1].id
        changes.append(Change("facts", "job", {"value": last}))
        self.core.commit(changes, [], durable=True)
        self.number = last
        for job in new:
            self._count(None, job.state)
            if job.state == "waiting":
                self._join(job)

    def _join(self, job: Job) -> None:
        blocked = self._blocked(job)
        for other in job.after:
            self._dependents.setdefault(other, set()).add(job.id)
        if blocked is not None:
            self._behind[job.planner_id] = None
        self.core.line.add(self.waiting(job, blocked))

    def waiting(self, job: Job, blocked: str | None = None) -> Waiting:
        request = job.request
        return Waiting(job.planner_id, request, job.user, job.uid, job.added, (), "job", job.place, blocked, job.forced)

    def _blocked(self, job: Job) -> str | None:
        """Why it may not start whatever is free: the jobs that it comes after."""
        open_ones = []
        for id in job.after:
            other = self.get(id)
            if other is not None and not other.over:
                open_ones.append(str(id))
        return f"It comes after job {', '.join(open_ones)}." if open_ones else None

    def closed(self) -> dict[str, str]:
        """Why no job starts at all, if so."""
        if not self.counts.get("waiting"):
            return {}
        if self.core.settings.paused:
            return {"job": "The queue is paused; `gpulease resume --queue` goes on."}
        keep = self.core.settings.keep_memory
        free = _free_host_memory()
        if free is not None and free < keep:
            self.core.alarm(self.core.now() + 5.0, "plan")
            return {"job": f"Host memory is low: {free:.0%} is free, and {keep:.0%} is kept."}
        return {}

    def put(self, job: Job, before: Job, also: list[Change] | None = None) -> None:
        """Write a changed job; in memory too, where it is there."""
        self.core.commit([Change("jobs", str(job.id), jobs.document(job)), *(also or [])], [])
        self._count(before.state, job.state)
        if job.id in self.running:
            self.running[job.id] = job

    def change(self, job: Job, before: Job) -> None:
        """Write a changed job that waits or is held, and its place in the line."""
        self.put(job, before)
        if before.state == "waiting":
            self.core.line.remove(job.planner_id)
        if job.state == "waiting":
            self._join(job)

    def first_waiting(self, most: int) -> list[Waiting]:
        """The front of the line as people see it: forced ones, then by priority and arrival, then the blocked."""
        line = self.core.line
        found = [line.forced[id] for id in sorted(line.forced)][:most]
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
            before, "start", now, tries=before.tries + 1, started=now, devices=labels, ended=None, exit_code=None,
            signal=None, why=None, out_of_memory=False, forced=False, place=None,
        )  # fmt: skip
        owner = Owner(job.uid, job.user, self.core.host, self.core.boot_id)
        request = job.request
        lease = Lease(
            grant.id, "job", grant.devices, owner, now, None, grant.memory, request.priority, job.note,
            request.duration, request.max_leases,
        )  # fmt: skip
        return lease, job, before

    @staticmethod
    def changes(lease: Lease, job: Job) -> list[Change]:
        return [Change("leases", lease.id, lease_document(lease)), Change("jobs", str(job.id), jobs.document(job))]

    def launch(self, job: Job, before: Job) -> None:
        """Start what was just committed as running."""
        self._count(before.state, job.state)
        stored = self.core.store.get("environments", job.environment) or {}
        environ = {**stored, **self._given(job)}
        trouble = None if job.uid != os.geteuid() else spawn.why_not(job.command, environ, job.cwd)
        if trouble is not None:
            return self._finish(job, "cannot-start", why=trouble)
        try:
            self._prepare_folder(job.uid)
            words = spawn.words_for(self._status(job), job.log, job.cwd, job.command)
            pid = spawn.start(words, environ, job.uid)
        except (OSError, ValueError, KeyError) as error:
            return self._finish(job, "cannot-start", why=f"it could not be started: {error}")
        if not self._adopt(job, pid, identity.start_time(pid)):
            self._judge(job, spawn.reap(pid))

    def _given(self, job: Job) -> dict[str, str]:
        """The variables that every job gets."""
        lease = self.core.leases[job.planner_id]
        uuids = ",".join(lease.devices)
        vendors = {self.core.devices[uuid].vendor for uuid in lease.devices if uuid in self.core.devices}
        visible = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": uuids}
        if vendors == {"amd"}:
            visible = {"ROCR_VISIBLE_DEVICES": uuids}
        return {
            **visible,
            "GPULEASE_JOB": str(job.id),
            "GPULEASE_LEASE": lease.id,
            "GPULEASE_DEVICES": ",".join(job.devices),
            "GPULEASE_TOKEN": self._token(job),
            **_home(job.uid),
        }

    def _token(self, job: Job) -> str:
        return f"{self.directory}:{job.id}:{job.tries};"

    def _status(self, job: Job) -> str:
        return os.path.join(self.directory, str(job.uid), f"{job.id}.{job.tries}")

    def default_log(self, uid: int, id: int) -> str:
        return os.path.join(self.directory, str(uid), f"{id}.log")

    def _prepare_folder(self, uid: int) -> None:
        own = os.path.join(self.directory, str(uid))
        if os.path.isdir(own):
            return
        os.makedirs(self.directory, 0o755, exist_ok=True)
        os.mkdir(own, 0o700)
        if uid != os.geteuid():
            os.chown(own, uid, -1)

    # ---------------------------------------------------------------- ending

    def process_ended(self, key: Key) -> bool:
        id = self._by_key.pop(key, None)
        if id is None:
            return False
        job = self.running[id]
        code = spawn.reap(key[0])
        told = spawn.fate(self._status(job)).code
        code = told if told is not None else code
        code = 128 - code if code is not None and code < 0 else code
        killing = self._killing.get(id)
        if killing is not None:
            self._killing[id] = killing._replace(end=True)
            self.running[id] = job._replace(exit_code=code)
            self.look_at_killed(str(id))
        else:
            self._judge(job, code)
        return True

    def _judge(self, job: Job, code: int | None) -> None:
        """What a job's end means. 128+n from the shell is a signal; a negative one is the shell's own."""
        if code is None:
            return self._finish(job, "lost", why="its process vanished without a trace", again=job.retry >= job.tries)
        code = 128 - code if code < 0 else code
        number = code - 128 if 128 < code < 193 else None
        if code == 0:
            return self._finish(job, "exit-zero", exit_code=0)
        if code in spawn.CANNOT and job.ended is None and self._silent(job, code):
            return self._finish(job, "cannot-start", why=spawn.CANNOT[code], exit_code=code)
        memory = jobs.ran_out_of_memory(_tail(job.log))
        again = job.tries <= max(job.retry, self.core.settings.max_runs - 1)
        why = "it ran out of GPU memory" if memory else None
        self._finish(job, "exit-nonzero", why=why, again=again, exit_code=code, signal=number, out_of_memory=memory)

    def _silent(self, job: Job, code: int) -> bool:
        """Whether the shell itself gave this code, since the command never began."""
        return not os.access(job.log, os.W_OK) if code == 124 else not os.path.isdir(job.cwd) if code == 125 else True

    def _finish(self, job: Job, event: str, why: str | None = None, again: bool = False, **changes: object) -> None:
        """One commit ends the try and gives back its devices; then everybody who cares hears of it."""
        now = self.core.now()
        if again and event in ("exit-nonzero", "lost"):
            event = "retry-after-failure"
        request = jobs.after_out_of_memory(job.request) if changes.get("out_of_memory") else job.request
        done, _ = jobs.step(job, event, now, ended=now, why=why, pid=None, **changes)
        if done.state == "waiting":
            done = done._replace(request=request)
        self._commit_end(job, done, why)
        self.running.pop(job.id, None)
        self._killing.pop(job.id, None)
        self._count(job.state, done.state)
        self._litter.append(self._status(job))
        if len(self._litter) == 1:
            self.core.alarm(now + TIDY, "tidy")
        if done.state == "waiting":
            self._join(done)
        else:
            self._announce(done)
            if job.id in self.removing:
                self.removing.discard(job.id)
                self.forget([done])

    def tidy(self) -> None:
        """Remove what is no longer needed, in a quiet moment: removing a file can cost more than starting a job."""
        for path in self._litter:
            _remove(path)
        self._litter.clear()

    def _commit_end(self, job: Job, done: Job, why: str | None) -> None:
        change = Change("jobs", str(job.id), jobs.document(done))
        lease = self.core.leases.get(job.planner_id)
        fields = {"id": job.planner_id, "kind": "job", "user": job.user, "why": why or f"exit code {done.exit_code}"}
        event = Event(self.core.now(), done.state, {**fields, "pid": job.pid, "devices": list(job.devices)})
        if lease is None:
            return self.core.commit([change], [event])
        self.core.give_back([lease], f"job {job.id}: {done.state}", [change])

    def _announce(self, job: Job) -> None:
        self._release_dependents(job)
        row = {"id": job.id, "state": job.state, "exit_code": job.exit_code}
        for watcher in list(self._watchers):
            if job.id in watcher.ids:
                watcher.ids.discard(job.id)
                watcher.ended[job.id] = row
                self._tell(watcher)
        if self.core.settings.on_finish:
            hooks.run(self.core.settings.on_finish, jobs.document(job), self.core.edge.log)

    def _release_dependents(self, job: Job) -> None:
        for id in sorted(self._dependents.pop(job.id, ())):
            other = self.get(id)
            if other is None or other.state != "waiting":
                continue
            if job.state != "complete" and not other.after_any:
                self.end_waiting([other], f"job {job.id}, which it comes after, is {job.state}")
            else:
                self._behind.pop(other.planner_id, None)
                self.core.line.remove(other.planner_id)
                self._join(other)

    def end_waiting(self, ending: list[Job], why: str) -> None:
        """Jobs that will never start, however many, in one commit."""
        now = self.core.now()
        done = [jobs.step(job, "kill", now, ended=now, why=why)[0] for job in ending]
        self.core.commit([Change("jobs", str(job.id), jobs.document(job)) for job in done], [])
        for before, after in zip(ending, done, strict=True):
            self._count(before.state, after.state)
            if before.state == "waiting":
                self.core.line.remove(before.planner_id)
                self._behind.pop(before.planner_id, None)
        for job in done:
            self._announce(job)

    # ---------------------------------------------------------------- killing, pausing

    def kill(self, job: Job, why: str) -> None:
        """TERM to all of it, KILL after the grace; its devices are not free before all of it is gone."""
        if job.state in ("waiting", "held"):
            return self.end_waiting([job], why)
        self._killing.setdefault(job.id, Killing(why))
        pids = self._tree(job)
        spawn.send(pids, signal.SIGTERM)
        spawn.send(pids, signal.SIGCONT)
        self.core.alarm(self.core.now() + self.core.settings.grace, "grace", str(job.id))

    def grace_over(self, id: str) -> None:
        job = self.running.get(int(id))
        if job is not None and job.id in self._killing:
            spawn.send(self._tree(job), signal.SIGKILL)
            self.core.alarm(self.core.now() + LOOK_AGAIN, "killed", id)

    def look_at_killed(self, id: str) -> None:
        """Its shell is gone. Once all of its tree is, the job is."""
        job = self.running.get(int(id))
        killing = self._killing.get(int(id))
        if job is None or killing is None or not killing.end:
            return
        if self._tree(job):
            return self.core.alarm(self.core.now() + LOOK_AGAIN, "killed", id)
        code = job.exit_code
        number = code - 128 if code is not None and 128 < code < 193 else None
        self._finish(job, "killed", why=killing.why, exit_code=code, signal=number)

    def over_time(self, id: str) -> None:
        job = self.running.get(int(id))
        if job is None or job.started is None or job.time_limit is None:
            return
        if job.started + job.time_limit <= self.core.now():
            self.kill(job, f"its time limit of {job.time_limit:g} s was over")

    def pause(self, job: Job) -> None:
        paused, _ = jobs.step(job, "pause", self.core.now())
        self.put(paused, job)
        spawn.send(self._tree(job), signal.SIGSTOP)

    def resume(self, job: Job) -> None:
        resumed, _ = jobs.step(job, "resume", self.core.now())
        self.put(resumed, job)
        spawn.send(self._tree(job), signal.SIGCONT)

    def _tree(self, job: Job) -> list[int]:
        return [] if job.pid is None else spawn.tree(job.pid, self._token(job))

    # ---------------------------------------------------------------- watching

    def watch(self, connection: Connection, found: Iterable[Job]) -> None:
        watcher = Watcher(connection, set(), {})
        for job in found:
            if job.over:
                watcher.ended[job.id] = {"id": job.id, "state": job.state, "exit_code": job.exit_code}
            else:
                watcher.ids.add(job.id)
        self._watchers.append(watcher)
        self._tell(watcher)

    def _tell(self, watcher: Watcher) -> None:
        done = list(watcher.ended.values())
        watcher.ended.clear()
        self.core.edge.send(watcher.connection, {"ok": {"ended": done, "left": len(watcher.ids)}})
        if not watcher.ids:
            self._watchers.remove(watcher)

    def disconnected(self, connection: Connection) -> None:
        self._watchers = [watcher for watcher in self._watchers if watcher.connection is not connection]

    def seen(self) -> None:
        """A sample came in: remember the most memory that each job was seen to use."""
        for id, job in self.running.items():
            lease = self.core.leases.get(job.planner_id)
            if lease is None:
                continue
            used = [
                process.memory or 0
                for uuid in lease.devices
                for process in self.core.devices[uuid].processes or ()
                if process.user == job.user and uuid in self.core.devices
            ]
            if used and sum(used) > (job.peak_memory or 0):
                self.running[id] = job._replace(peak_memory=sum(used))

    def _count(self, before: str | None, after: str) -> None:
        if before is not None:
            self.counts[before] = self.counts.get(before, 0) - 1
        self.counts[after] = self.counts.get(after, 0) + 1

    def forget(self, gone: list[Job]) -> None:
        """Remove ended jobs and what the queue itself wrote for them."""
        self.core.commit([Change("jobs", str(job.id), None) for job in gone], [])
        for job in gone:
            self.counts[job.state] = self.counts.get(job.state, 0) - 1
            if job.log == self.default_log(job.uid, job.id):
                _remove(job.log)


def _free_host_memory() -> float | None:
    """The part of the host's memory that is available."""
    wanted = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    wanted[name] = int(rest.split()[0])
                if len(wanted) == 2:
                    break
    except (OSError, ValueError):
        return None
    total = wanted.get("MemTotal")
    return wanted["MemAvailable"] / total if total and "MemAvailable" in wanted else None


def _home(uid: int) -> dict[str, str]:
    """For a job that runs as another user than the broker."""
    if uid == os.geteuid():
        return {}
    import pwd

    entry = pwd.getpwuid(uid)
    return {"HOME": entry.pw_dir, "USER": entry.pw_name, "LOGNAME": entry.pw_name, "SHELL": entry.pw_shell}


def _tail(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL)
    except OSError:
        return b""


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass
