"""Everything that the broker knows, and the only ways to change it.

Each change is made in memory and in the store together, can be undone until it is committed, and raises the revision
if plans are made of what it changes. What is in the store too is changed by the methods, the rest by a table's own
`put` and `drop`.
Not here: deciding what to change, and telling anybody.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpulease.broker.core.events import Key, Occupancy, Received
from gpulease.broker.core.records import Pending, lease_document, pending_document
from gpulease.broker.core.tables import Changes, Table
from gpulease.broker.core.values import (
    NOTHING,
    About,
    Added,
    Blocker,
    Cap,
    Checking,
    Coming,
    Delay,
    Dying,
    Idle,
    Moved,
    NoticeChoice,
    OwnOrder,
    Parts,
    Refused,
    RunQuestion,
    Seen,
    Subscriber,
)
from gpulease.broker.core.views import Ended, Known, views
from gpulease.errors import GpuleaseError
from gpulease.model import job as jobs
from gpulease.model.job import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Document, HistoryEvent, Store, Which
from gpulease.model.values import Cause, Device, Lease, Owner, Sample, Waiting
from gpulease.planner import DeviceView, Line, Peak, Policy, Spent, settings
from gpulease.planner.lengths import Sketch
from gpulease.planner.placement import busyness
from gpulease.planner.settings import Settings

AT_ONCE = 200  # jobs that the store is asked for
LEARNT = "learnt "  # begins the keys of sketches among the facts
NUMBERS = 100  # ids of leases that are put on disk at a time


class State:
    def __init__(self, store: Store, about: About, config: Mapping[str, str] = NOTHING) -> None:
        self.store, self.about = store, about
        self.config, self.config_trouble = config, None  # parameters of the config file, and what is wrong with it
        self.changes = changes = Changes()
        self.durable = False  # whether what was written must also survive a power cut
        self.backup: tuple[Peer, str] | None = None  # who copies the state now
        self.unwritable: str | None = None  # why the last commit failed, until one succeeds
        # What plans are made of
        self.leases: Table[str, Lease] = Table(changes, True)
        self.devices: Table[str, Device] = Table(changes, True)
        self.old_labels: dict[str, str] = {}  # by UUID, from before this broker was started
        self.ended: Table[str, Ended] = Table(changes, True)  # the last lease that ended on a device
        self.excluded: Table[str, str] = Table(changes, True)
        self.usage: Table[str, Spent] = Table(changes, True)
        self.records: Table[str, Spent] = Table(changes, True)  # of who outlasted what they declared
        self.peaks: Table[str, Peak] = Table(changes, True)  # by shape, the memory that jobs were seen to use
        self.sketches: Table[str, Sketch] = Table(changes, True)  # of how long everything ran
        self.unsaved: Table[str, None] = Table(changes)  # sketches that are to be written
        self.usage_due = False  # an alarm to write these is set
        self.policy = Policy()
        self.line = Line(self.policy)
        self.wall_ahead = about.wall_ahead
        self.settings = Settings()
        self.own_order = OwnOrder()
        # The devices as they were seen
        self.sample: Sample | None = None
        self.sampled_at = 0.0
        self.asked_at = 0.0  # when the sample under way was asked for
        self.sampled_from = 0.0  # the same of the last one that came: it is not older
        self.sampling = False  # a sample was asked for
        self.awaiting: tuple[Received, ...] = ()  # messages that cannot be answered without one
        self.resuming: tuple[Received, ...] = ()  # of clients whose lease a former broker granted
        self.look_due = False  # an alarm for the next sample is set
        self.held_due = False  # the same, for the history
        self.trouble: GpuleaseError | None = None
        self.failed_at = 0.0  # when the driver last did not answer
        self.check: Idle | Checking | Refused = Idle()
        self.locked = False  # a check was asked for, and the neighbours' users may not choose meanwhile
        self.verified: Table[str, None] = Table(changes)  # checked since their last lease ended
        self.neighbour_holds: Table[str, str] = Table(changes, True)  # devices, and which neighbour holds each
        self.placeholders: Table[Key, str] = Table(changes, True)  # processes of ours that show a device as taken
        self.neighbours_about: Mapping[str, float] = NOTHING  # that were found here, and until when that counts
        self.neighbours_shown: Mapping[str, Document] = NOTHING  # what the edge tells of them, for people
        self.outside: Table[tuple[str, str], float] = Table(changes)  # device and user: when that was last seen
        self.blockers: Table[str, Blocker] = Table(changes)  # by user
        # Requests and leases
        self.pending: Table[str, Pending] = Table(changes)
        self.unwritten: Table[str, None] = Table(changes)  # pending, and neither on disk nor told to anybody
        self.listeners: Table[str, Peer] = Table(changes)  # by id of a request or an unclaimed lease
        self.unclaimed: Table[str, None] = Table(changes)
        self.tokens: Table[tuple[int, str], str] = Table(changes)  # requests by user and the client's own name
        self.owned: Table[Key, frozenset[str]] = Table(changes)  # leases and requests, by the process they end with
        self.number = self.numbers_kept = 0
        self.last_since = 0.0
        # Jobs: the ones that wait are in the store and in the line only
        self.running: Table[int, Job] = Table(changes)
        self.seen: Table[int, Seen] = Table(changes)  # of those that run packed
        self.counts: Table[str, int] = Table(changes)  # by state
        self.open_jobs: Table[int, int] = Table(changes)  # that are not over, by user
        self.ended_jobs: Table[int, int] = Table(changes)  # the others, by user
        self.roots: Table[int, Key] = Table(changes)  # the shell of each that was launched
        self.delays: Table[str, Delay] = Table(changes, True)  # by user: nothing of theirs can be started now
        self.halts: Table[str, float] = Table(changes, True)  # by kind and user: until when a kill of many is under way
        self.unsent: Table[int, tuple[tuple[int, ...], bool]] = Table(changes)  # signals to runs without a known shell
        self.dying: Table[int, Dying] = Table(changes)
        self.asked: Table[int, RunQuestion] = Table(changes)  # of agents, by job
        self.dependents: Table[int, dict[int, None]] = Table(changes)  # by job that is not over: who comes after it
        self.awaited: Table[int, dict[int, None]] = Table(changes)  # by who comes after others: which are not over
        self.followed: Table[int, dict[int, None]] = Table(changes)  # by job that is over: who waits for others still
        self.caps: Table[int, Cap] = Table(changes, True)  # by sweep: how many of its jobs run at a time
        self.untidy: Table[int, None] = Table(changes)  # users of whom something ended
        self.look_at_trees_due = self.overdue_due = self.tidy_due = False  # alarms that are set
        self.job_number = 0
        self.moved: Moved | None = None
        self._read: dict[int, Job | None] = {}  # from the store, in this turn
        self._states: dict[int, str | None] = {}  # the same: many may come after the same
        self.batches: Table[str, Added] = Table(changes)  # that were added lately, by token
        self.adding: Table[Peer, Coming] = Table(changes)
        self._environment: tuple[str, dict[str, str]] = ("", {})  # the last one that was read, by its key
        self.environments: Table[int, int] = Table(changes)  # by user: characters of those that are kept
        self.parts: Table[Peer, Parts] = Table(changes)
        self.subscribers: Table[Peer, Subscriber] = Table(changes)
        self.chosen: Table[int, NoticeChoice] = Table(changes)  # by user: of what they are told
        self.broken: Table[str, str] = Table(changes)  # devices that are lost, and how far that was written
        self.known_devices: Table[str, Device] = Table(changes)  # as they were seen well since the machine was started
        self.texts: Table[str, str] = Table(changes)  # parameters that were set, as they were written; above the config

    # ---------------------------------------------------------------- the whole

    @property
    def revision(self) -> int:
        """Raised by every change that a plan reads."""
        return self.changes.revision

    def touch(self) -> None:
        """Something outside of the state changed that a plan reads: the host's memory, or the time."""
        self.changes.revision += 1

    def commit(self) -> None:
        self._read.clear()
        self._states.clear()
        if self.store.commit(self.durable):
            self.unwritable = None
        self.changes.keep()
        self.durable = False

    def rollback(self) -> None:
        self._read.clear()
        self._states.clear()
        self.store.rollback()
        self.changes.undo()
        self.durable = False

    def set(self, name: str, value: Any, planned: bool = False) -> None:
        """Change one of the plain attributes."""
        self.changes.add(setattr, self, name, getattr(self, name))
        setattr(self, name, value)
        if planned:
            self.changes.revision += 1

    def restore(self, table: Table[Any, Any], rows: Mapping[Any, Any]) -> None:
        """What the store has of a table, when the broker starts."""
        for key, value in rows.items():
            table.put(key, value)

    def record(self, time: float, what: str, **fields: Any) -> None:
        self.store.append(HistoryEvent(time, what, fields))

    # ---------------------------------------------------------------- devices

    def see(self, sample: Sample, now: float) -> None:
        self.set("sample", sample)
        self.set("sampled_at", now)
        self.set("sampled_from", self.asked_at)
        self.set("trouble", None, planned=self.trouble is not None)
        if list(self.devices) != [device.uuid for device in sample.devices]:
            for uuid in list(self.devices):
                self.devices.drop(uuid)  # put again below, in their order
        for device in sample.devices:
            if self.devices.get(device.uuid) != device:
                self.devices.put(device.uuid, device)

    def see_device(self, uuid: str, seen: Occupancy) -> None:
        known = self.devices.get(uuid)
        if known is None:
            return
        busy = seen.utilization
        if busy is None or busyness(busy) == busyness(known.utilization):  # a plan is not made anew for noise
            busy = known.utilization
        after = known._replace(memory_used=seen.memory_used, processes=seen.processes, lost=seen.lost, utilization=busy)
        if after != known:
            self.devices.put(uuid, after)

    def views(self, holds: Mapping[str, str] | None = None) -> dict[str, DeviceView]:
        """What is known of each device beside the sample; `holds` instead of what the neighbours hold."""
        holds = self.neighbour_holds if holds is None else holds
        known = Known(self.ended, self.excluded, holds, self.placeholders, self.about.host)
        return views(self.devices.values(), self.leases.values(), known)

    def labels(self, uuids: Iterable[str]) -> list[str]:
        """As people know them; before the first sample as they were known when they were leased."""
        return [self.devices[uuid].label if uuid in self.devices else self.old_labels.get(uuid, uuid) for uuid in uuids]

    def exclude(self, uuid: str, note: str | None) -> None:
        """Take it out of service with a note; None puts it back."""
        self.store.write("excluded", uuid, None if note is None else {"note": note})
        self.durable = True
        if note is None:
            self.excluded.drop(uuid)
        else:
            self.excluded.put(uuid, note)

    # ---------------------------------------------------------------- settings

    def write_setting(self, name: str, text: str | None) -> list[str]:
        """None is the default. Gives complaints about texts that this version cannot read."""
        self.store.write("settings", name, None if text is None else {"text": text})
        self.durable = True
        if text is None:
            self.texts.drop(name)
        else:
            self.texts.put(name, text)
        return self.use_settings()

    def use_settings(self) -> list[str]:
        complaints: list[str] = []
        found, policy = settings.apply({**self.config, **settings.may_be_set(self.texts)}, complaints.append)
        self.set("settings", found, planned=True)
        self.set("policy", policy, planned=True)
        self.set("line", self.line.under(policy))
        return complaints

    def choose(self, uid: int, chosen: NoticeChoice | None) -> None:
        """None: the user is told of nothing."""
        self.durable = True
        if chosen is None:
            self.chosen.drop(uid)
        else:
            self.chosen.put(uid, chosen)
        self.store.write("facts", "notices", {str(one): list(choice) for one, choice in self.chosen.items()})

    def charge(self, usage: Mapping[str, Spent], records: Mapping[str, Spent]) -> None:
        for table, rows in ((self.usage, usage), (self.records, records)):
            for user in set(table) - set(rows):
                table.drop(user)
            for user, spent in rows.items():
                if table.get(user) != spent:
                    table.put(user, spent)

    def write_usage(self) -> None:
        """Fair share may lose a few seconds to a crash; what was granted never does."""
        for name, table in (("usage", self.usage), ("records", self.records), ("peaks", self.peaks)):
            self.store.write("facts", name, {key: list(value) for key, value in table.items()})
        for name in list(self.unsaved):
            sketch = self.sketches.get(name)
            self.store.write("facts", f"{LEARNT}{name}", None if sketch is None else {"sketch": list(sketch)})
            self.unsaved.drop(name)

    def learn(self, name: str, sketch: Sketch | None) -> None:
        """None forgets it."""
        if sketch is None:
            self.sketches.drop(name)
        else:
            self.sketches.put(name, sketch)
        self.unsaved.put(name, None)

    # ---------------------------------------------------------------- the line

    def enter_line(self, waiting: Waiting) -> None:
        """In the line `not_before` is in the broker's time. A request that names a time of day means the wall clock."""
        self._put_in_line(_sooner(waiting, self.wall_ahead))

    def fill_line(self, many: list[Waiting]) -> None:
        """When the broker starts: those that may start at any time."""
        self.line.fill(many)
        self.changes.revision += 1

    def step_clock(self, wall_ahead: float) -> None:
        """The wall clock was set: requests for a time of it start earlier or later. Nothing else moves."""
        step = wall_ahead - self.wall_ahead
        self.set("wall_ahead", wall_ahead)
        for waiting in [one for one in self.line if one.request.not_before is not None]:
            self.leave_line(waiting.id)
            self._put_in_line(_sooner(waiting, step))

    def _put_in_line(self, waiting: Waiting) -> None:
        self.line.add(waiting)
        self.changes.add(self.line.remove, waiting.id)
        self.changes.revision += 1

    def leave_line(self, id: str) -> None:
        waiting = self.line.remove(id)
        self.changes.add(self.line.add, waiting)
        self.changes.revision += 1

    def block(self, id: str, why: Cause | None) -> None:
        """Another reason why it may not be granted yet."""
        waiting = self.line[id]
        self.leave_line(id)
        self._put_in_line(waiting._replace(blocked=why))

    def since(self, now: float) -> float:
        """Now, and later than whoever came before."""
        self.set("last_since", max(now, self.last_since + 1e-6))
        return self.last_since

    # ---------------------------------------------------------------- requests

    def next_lease_id(self) -> str:
        """Ids are never used twice; a block of them is put on disk at a time."""
        if self.number >= self.numbers_kept:
            self.set("numbers_kept", self.number + NUMBERS)
            self.store.write("facts", "number", {"value": self.numbers_kept})
        self.set("number", self.number + 1)
        return f"L{self.number}"

    def enter(self, pending: Pending, written: bool) -> None:
        """A request into the line. A new one is on disk only when it really has to wait."""
        self.pending.put(pending.id, pending)
        self.enter_line(pending.waiting)
        self._own(pending.owner, pending.id)
        if not written:
            self.unwritten.put(pending.id, None)
        elif pending.token:
            self.tokens.put((pending.owner.uid, pending.token), pending.id)

    def write_pending(self, id: str) -> None:
        self.store.write("line", id, pending_document(self.pending[id]))
        self.unwritten.drop(id)

    def withdraw(self, id: str) -> Pending:
        """A request out of the line, granted or not."""
        pending = self.pending[id]
        if id not in self.unwritten:
            self.store.write("line", id, None)
        self.unwritten.drop(id)
        self.pending.drop(id)
        self.leave_line(id)
        self._disown(pending.owner, id)
        return pending

    def _own(self, owner: Owner, id: str) -> None:
        if owner.pid is not None:
            key = (owner.pid, owner.start_time)
            self.owned.put(key, self.owned.get(key, frozenset()) | {id})

    def _disown(self, owner: Owner, id: str) -> None:
        if owner.pid is None:
            return
        key = (owner.pid, owner.start_time)
        left = self.owned.get(key, frozenset()) - {id}
        if left:
            self.owned.put(key, left)
        else:
            self.owned.drop(key)

    # ---------------------------------------------------------------- leases

    def hold(self, lease: Lease, claimed: bool = True, token: str | None = None) -> None:
        """A new lease, or one that was loaded; its devices must be looked at again before anybody else gets them."""
        self.leases.put(lease.id, lease)
        for uuid in lease.devices:
            self.ended.drop(uuid)
            self.verified.drop(uuid)
        self._own(lease.owner, lease.id)
        if not claimed:
            self.unclaimed.put(lease.id, None)
        if token:
            self.tokens.put((lease.owner.uid, token), lease.id)

    def write_lease(self, lease: Lease, claimed: bool = True, token: str | None = None) -> None:
        self.store.write("leases", lease.id, lease_document(lease, claimed, token, self.labels(lease.devices)))
        self.durable = self.durable or lease.kind == "reservation" or lease.until is not None

    def change_lease(self, lease: Lease) -> None:
        """Of a job, which nobody has to claim."""
        self.leases.put(lease.id, lease)
        self.write_lease(lease)

    def claim(self, id: str) -> None:
        """Whoever the lease is for has been told of it."""
        self.unclaimed.drop(id)
        self.listeners.drop(id)

    def end_lease(self, lease: Lease, mark: Ended) -> None:
        self.store.write("leases", lease.id, None)
        self.leases.drop(lease.id)
        self.unclaimed.drop(lease.id)
        self.listeners.drop(lease.id)
        for uuid in lease.devices:
            self.ended.put(uuid, mark)
            self.verified.drop(uuid)
        if isinstance(self.check, Checking) and self.check.devices & set(lease.devices):
            # What the check under way sees there may be from before this end.
            self.set("check", self.check._replace(devices=self.check.devices - set(lease.devices)))
        self._disown(lease.owner, lease.id)

    # ---------------------------------------------------------------- jobs

    def job(self, id: int) -> Job | None:
        if id in self.running:
            return self.running[id]
        if id not in self._read:
            found = self.store.get("jobs", str(id))
            self._read[id] = None if found is None else jobs.read(found)
        return self._read[id]

    def environment(self, job: Job) -> dict[str, str]:
        """The submitter's. The last one is kept at hand: jobs of one batch share theirs."""
        if self._environment[0] != job.environment:
            found = self.store.get("environments", job.environment)
            if found is None:
                return {}
            self._environment = (job.environment, found)
        return self._environment[1]

    def keep_environment(self, uid: int, key: str, environ: dict[str, str]) -> None:
        """Of one user's jobs; `key` begins with the user's number, so that it can be counted when it is forgotten."""
        self.store.write("environments", key, environ)
        self._count_environment(uid, size_of(environ))

    def forget_environments(self, keys: Iterable[str]) -> None:
        """Those that no job has any more."""
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
        return job.environment == self._environment[0] or self.store.get("environments", job.environment) is not None

    def _uncount_environment(self, key: str, environ: dict[str, str]) -> None:
        if self._environment[0] == key:
            self._environment = ("", {})
        uid, dot, _ = key.partition(".")
        if dot:  # else it is from before they were counted
            self._count_environment(int(uid), -size_of(environ))

    def _count_environment(self, uid: int, size: int) -> None:
        self.environments.put(uid, self.environments.get(uid, 0) + size)
        self.store.write("facts", "environments", {str(user): size for user, size in self.environments.items() if size})

    def write_job(self, job: Job, before: Job | None) -> None:
        self._read.pop(job.id, None)
        self._states.pop(job.id, None)
        self.store.write("jobs", str(job.id), jobs.stored(job))
        self.change_job(job, before)

    def change_job(self, job: Job, before: Job | None) -> None:
        """In memory only: what may be forgotten, or was written already."""
        self.count(job.uid, None if before is None else before.state, job.state)
        if job.state in jobs.RUNNING:
            self.running.put(job.id, job)
        else:
            self.running.drop(job.id)

    def forget_job(self, job: Job) -> None:
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
            if state is not None:
                of_user = self.open_jobs if state in jobs.OPEN else self.ended_jobs
                of_user.put(uid, of_user.get(uid, 0) + change)

    def forget_run(self, id: int) -> None:
        """All that was known of its processes."""
        self.roots.drop(id)
        self.dying.drop(id)
        self.unsent.drop(id)
        self.asked.drop(id)

    def job_states(self, ids: Sequence[int]) -> dict[int, str | None]:
        """In which state each of them is; None for one that is not there."""
        missing = [id for id in ids if id not in self._states]
        for at in range(0, len(missing), AT_ONCE):
            some = missing[at : at + AT_ONCE]
            self._states.update(dict.fromkeys(some))
            self._states.update({row.id: row.state for row in self.store.job_rows(Which(ids=[(i, i) for i in some]))})
        return {id: self._states[id] for id in ids}

    def come_after(self, dependent: int, open_ones: Iterable[int], over: Iterable[int]) -> None:
        """A job that waits for others."""
        found = dict.fromkeys(open_ones)
        if not found:
            return
        self.awaited.put(dependent, found)
        for table, many in ((self.dependents, found), (self.followed, over)):
            for id in many:
                self._link(table, id, dependent)

    def met(self, id: int, dependent: int) -> int:
        """Job `id`, which it came after, is over; how many others are not."""
        left = self.awaited[dependent]
        del left[id]
        self.changes.add(left.__setitem__, id, None)
        self._unlink(self.dependents, id, dependent)
        self._link(self.followed, id, dependent)
        return len(left)

    def come_after_none(self, dependent: int, others: Iterable[int]) -> None:
        self.awaited.drop(dependent)
        for id in others:
            for table in (self.dependents, self.followed):
                self._unlink(table, id, dependent)

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
        if cap is None:
            self.caps.drop(sweep)
        else:
            self.caps.put(sweep, cap)
        self.store.write("facts", "caps", {str(id): list(one) for id, one in self.caps.items()})

    def add_batch(self, added: Added, token: str | None, uid: int, kept: int) -> None:
        """Ids that were given to jobs; a client that sends them again by the same token gets the same."""
        if token is not None:
            mine = [one for one in self.batches if one.startswith(f"{uid} ") and one != token]
            for old in mine[: max(0, len(mine) - kept)]:
                self.batches.drop(old)
            self.batches.put(token, added)
        self.set("job_number", max(self.job_number, added.last))
        self.store.write("facts", "job", {"value": self.job_number, "batches": dict(self.batches)})
        self.durable = self.durable or added.next > added.last

    def gather(self, peer: Peer, parts: Parts | None) -> None:
        if parts is None:
            self.parts.drop(peer)
        else:
            self.parts.put(peer, parts)

    # ---------------------------------------------------------------- subscribers

    def put_subscriber(self, subscriber: Subscriber) -> None:
        self.subscribers.put(subscriber.peer, subscriber)

    @property
    def looked_at(self) -> bool:
        """Whether the devices are to be followed as they change: for who waits, runs, is shown them or sees them."""
        watched = any("devices" in subscriber.topics for subscriber in self.subscribers.values())
        beside = self.leases and self.safe_gpu == "on"
        told = self.leases and self.chosen  # who holds a GPU that breaks
        return bool(self.line or self.running or self.resuming or watched or beside or told)

    @property
    def slots(self) -> int:
        """How many jobs without a GPU may run at a time."""
        asked = self.settings.cpu_jobs
        return self.about.cores if isinstance(asked, str) else asked

    @property
    def safe_gpu(self) -> str:
        """The setting as it is in effect: `auto` is `on` while safe-gpu was seen lately."""
        found = self.settings.safe_gpu == "auto" and "safe-gpu" in self.neighbours_about
        return "on" if found else self.settings.safe_gpu

    # ---------------------------------------------------------------- what is shown

    def manages(self, uid: int) -> bool:
        return uid in (0, self.about.uid)

    def describe(self, now: float) -> Document:
        about = self.about._asdict()
        shown = {name: about[name] for name in ("pid", "kind", "user", "directory", "version")}
        troubles = {"config_trouble": self.config_trouble, "state_trouble": self.unwritable}
        return {**shown, "uptime": now - self.about.began, **troubles, "visible": self.settings.visible}


def size_of(environ: dict[str, str]) -> int:
    """About as many bytes as it takes in the store."""
    return len(json.dumps(environ))


def _sooner(waiting: Waiting, seconds: float) -> Waiting:
    start = waiting.request.not_before
    if start is None or waiting.request.relative or not seconds:
        return waiting
    return waiting._replace(request=waiting.request._replace(not_before=start - seconds))
