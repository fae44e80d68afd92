"""The only writer: one event at a time, plan, commit, then effects.

Events come in as method calls: a client's message, a process's end, a sample, the clock. What must be true before
anyone is told is committed first. Not here: sockets, pidfds and the sampler, which are the edge (server.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any, Protocol

from gpulease.broker import settings
from gpulease.broker.clock import Clock
from gpulease.broker.connection import Connection
from gpulease.broker.neighbours import SafeGpuLock
from gpulease.broker.queue import Queue
from gpulease.broker.records import Asker, asker_document, lease_document, read_asker, read_lease
from gpulease.broker.settings import Settings
from gpulease.broker.views import Ended, views
from gpulease.errors import Cancelled, GpuleaseError, NotEnoughDevices, NotGranted, StateError
from gpulease.job import OPEN
from gpulease.messages import error
from gpulease.model import Device, Lease, Owner, Process, Sample
from gpulease.places import simulated
from gpulease.planner import Line, Plan, Policy, Spent, forget, lease_of, plan, settle, weight_of
from gpulease.planner.reasons import IMPOSSIBLE
from gpulease.stores.base import Change, Document, Event, Store

FRESH = 1.0  # seconds that a sample serves to refuse somebody, or to show the status
RETRY = 0.05  # seconds between looks at safe-gpu's lock, while one of its users chooses
GRACE = 0.5  # seconds that it may be held before anybody is told: another broker needs milliseconds
SOON = 0.005  # seconds between looks during these
RETRY_DISK = 5.0  # seconds before a commit that failed is tried again
UNCLAIMED = 10.0  # seconds for a client to come back after the broker was started anew
SAVE_USAGE = 10.0  # seconds between saves of who has used how much
HURRY = 0.02  # seconds that whoever gives back waits for its answer, at most
KEEP_EVENTS = 90 * 86400.0

Key = tuple[int, int | None]
Occupancy = tuple[int | None, tuple[Process, ...] | None, str | None]  # memory in use, processes, why lost


class Edge(Protocol):
    """What the core asks of the world, after its commit."""

    def send(self, connection: Connection, message: Document) -> None: ...
    def watch(self, pid: int, start_time: int | None) -> bool: ...
    def forget(self, key: Key) -> None: ...
    def ask(self, question: str) -> bool: ...
    def identify(self, pid: int) -> tuple[int | None, int | None]:
        """Start time and user of a process."""

    def manages(self, uid: int) -> bool: ...
    def about(self) -> Document: ...
    def stop(self) -> None: ...
    def log(self, text: str) -> None: ...


class Core:
    def __init__(
        self, store: Store, edge: Edge, boot_id: str, host: str, lock: SafeGpuLock, directory: str = "/nonexistent"
    ) -> None:
        self.store, self.edge, self.boot_id, self.host, self.lock = store, edge, boot_id, host, lock
        self.settings = Settings()
        self.texts: dict[str, str] = {}  # parameters that were set, as they were written
        self.queue = Queue(self, directory)
        self.leases: dict[str, Lease] = {}
        self.askers: dict[str, Asker] = {}
        self.policy = Policy()
        self.line = Line(self.policy)
        self.excluded: dict[str, str] = {}
        self.usage: dict[str, Spent] = {}
        self.ended: dict[str, Ended] = {}
        self.sample: Sample | None = None
        self.devices: dict[str, Device] = {}
        self.trouble: GpuleaseError | None = None
        self.waiting_at: dict[str, Connection] = {}  # by id of a request or an unclaimed lease
        self.unclaimed: set[str] = set()
        self.tokens: dict[tuple[int, str], str] = {}  # of requests of the last broker: by user, the client's own name
        self.clock = Clock()
        self._fresh: list[str] = []  # in the line, and neither on disk nor told to anybody
        self._owned: dict[Key, set[str]] = {}
        self._checking: set[str] | None = None
        self._verified: set[str] = set()
        self._alarms: list[tuple[float, str, str]] = []
        self._plan: Plan | None = None
        self._after_sample: list[Callable[[], None]] = []
        self._last_since = 0.0
        self._dead: list[Key] = []
        self._blocked: str | None = None
        self._blocked_from = 0.0  # when it is told
        self._answers: list[tuple[Connection, Document]] = []
        self._usage_due = False
        self._answer_by = 0.0
        self._planned_at = 0.0
        self._look_due = False
        self.number = self.numbers_kept = 0
        self._load()

    # ---------------------------------------------------------------- start

    def _load(self) -> None:
        """Find everything again as it was when the last broker ended, however it ended."""
        facts = self.store.load("facts")
        known = facts.get("clock", {})
        self.clock = Clock(known["offset"] if known.get("boot_id") == self.boot_id else None)
        self.number = self.numbers_kept = facts.get("number", {}).get("value", 0)
        usage = facts.get("usage", {})
        self.usage = {user: Spent(*spent) for user, spent in usage.items()}
        self.excluded = {uuid: document["note"] for uuid, document in self.store.load("excluded").items()}
        clock = {"boot_id": self.boot_id, "offset": self.clock.offset}
        self.commit([Change("facts", "clock", clock)], [])
        self.store.forget_events(self.now() - KEEP_EVENTS)
        self.texts = {name: document["text"] for name, document in self.store.load("settings").items()}
        self.use_settings()
        self._load_leases()
        self._load_line()
        self.queue.load()
        self._skip_numbers()

    def use_settings(self) -> None:
        self.settings, self.policy = settings.apply(self.texts, self.edge.log)
        self.line = self.line.under(self.policy)
        self._plan = None

    def _load_leases(self) -> None:
        for document in self.store.load("leases").values():
            lease, claimed = read_lease(document)
            self._keep(lease)
            if document.get("token"):
                self.tokens[lease.owner.uid, document["token"]] = lease.id
            if not claimed:
                self.unclaimed.add(lease.id)
                self.alarm(self.now() + UNCLAIMED, "unclaimed", lease.id)
        for lease in list(self.leases.values()):
            if lease.kind != "job" and not self._alive(lease.owner):
                self.end([lease], "its process ended while no broker ran")

    def _load_line(self) -> None:
        gone = []
        for document in self.store.load("line").values():
            asker = read_asker(document)
            if not self._alive(asker.owner):
                gone.append(asker.waiting.id)
                continue
            self.enter(asker, fresh=False)
            if asker.token:
                self.tokens[asker.owner.uid, asker.token] = asker.waiting.id
            self.alarm(self.now() + UNCLAIMED, "unclaimed", asker.waiting.id)
        if gone:
            self.commit([Change("line", id, None) for id in gone], [])

    def _skip_numbers(self) -> None:
        """An id in use is never given again, even if an older version did not write down how far it had come."""
        numbers = [int(id[1:]) for id in (*self.leases, *self.askers) if id[1:].isdecimal()]
        self.number = max(self.number, *numbers, 0)

    def _alive(self, owner: Owner) -> bool:
        if owner.pid is None:
            return True
        return owner.boot_id == self.boot_id and self.edge.watch(owner.pid, owner.start_time)

    # ---------------------------------------------------------------- small things

    @property
    def simulated(self) -> bool:
        """Before the first sample: what this process was started to look at."""
        return simulated(os.environ) if self.sample is None else self.sample.simulated

    def now(self) -> float:
        return self.clock.now()

    def since(self) -> float:
        """Now, and later than whoever came before."""
        self._last_since = max(self.now(), self._last_since + 1e-6)
        return self._last_since

    def since_at_least(self, moment: float) -> None:
        self._last_since = max(self._last_since, moment)

    def counts_open(self) -> int:
        return sum(self.queue.counts.get(state, 0) for state in OPEN)

    def commit(self, changes: Iterable[Change], events: list[Event], durable: bool = False) -> None:
        self.store.commit(changes, events, durable)

    def event(self, what: str, lease: Lease, **more: Any) -> Event:
        owner = lease.owner
        labels = self.labels(lease.devices)
        fields = {"id": lease.id, "kind": lease.kind, "user": owner.user, "pid": owner.pid, "devices": labels, **more}
        return Event(self.now(), what, fields)

    def labels(self, uuids: Iterable[str]) -> list[str]:
        return [self.devices[uuid].label if uuid in self.devices else uuid for uuid in uuids]

    def alarm(self, time: float, what: str, id: str = "") -> None:
        heappush(self._alarms, (time, what, id))

    def own(self, owner: Owner, id: str) -> None:
        if owner.pid is not None:
            self._owned.setdefault((owner.pid, owner.start_time), set()).add(id)

    def disown(self, owner: Owner, id: str) -> None:
        if owner.pid is None:
            return
        key = (owner.pid, owner.start_time)
        ids = self._owned.get(key, set())
        ids.discard(id)
        if not ids and self._owned.pop(key, None) is not None:
            self.edge.forget(key)

    def guarded(self, connection: Connection, action: Callable[[], None]) -> None:
        """Do it; an error is the client's answer."""
        try:
            action()
        except GpuleaseError as trouble:
            self.edge.send(connection, error(trouble))

    # ---------------------------------------------------------------- the line

    def enter(self, asker: Asker, fresh: bool = True) -> None:
        """Into the line. A fresh one is on disk only when it really has to wait."""
        id = asker.waiting.id
        self.askers[id] = asker
        self.line.add(asker.waiting)
        self.own(asker.owner, id)
        if fresh:
            self._fresh.append(id)
        self.look_again()
        if asker.deadline is not None and (asker.deadline > self.now() or not fresh):
            self.alarm(asker.deadline, "deadline", id)

    def leave(self, id: str) -> Asker:
        """Out of the line, in memory only."""
        asker = self.askers.pop(id)
        self.line.remove(id)
        self.waiting_at.pop(id, None)
        if id in self._fresh:
            self._fresh.remove(id)
        self._plan = None
        return asker

    def drop(self, id: str) -> None:
        """Out of the line for good."""
        stored = id not in self._fresh
        if stored:
            self.commit([Change("line", id, None)], [])
        asker = self.leave(id)
        self.disown(asker.owner, id)

    def refuse(self, id: str, trouble: GpuleaseError) -> None:
        connection = self.waiting_at.get(id)
        self.drop(id)
        if connection is not None:
            self.edge.send(connection, error(trouble))

    # ---------------------------------------------------------------- leases

    def _keep(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self.own(lease.owner, lease.id)
        if lease.until is not None:
            self.alarm(lease.until, "until", lease.id)

    def end(self, leases: list[Lease], why: str, also: list[Change] | None = None) -> None:
        """Give back. The devices are free once a look at them, taken later, finds nobody there."""
        usage = self.usage
        for lease in leases:
            usage = settle(usage, lease, weight_of(lease, self.devices), self.now(), self.policy)
        usage = forget(usage, self.now(), self.policy)
        changes = [Change("leases", lease.id, None) for lease in leases]
        self.commit([*changes, *(also or [])], [self.event("ended", lease, why=why) for lease in leases])
        if not self._usage_due:
            self._usage_due = True
            self.alarm(self.now() + SAVE_USAGE, "usage")
        self.usage = dict(usage)
        for lease in leases:
            self._forget_lease(lease)

    def save_usage(self, id: str = "") -> None:
        """Fair share may lose a few seconds to a crash; what was granted never does."""
        self._usage_due = False
        self.commit([Change("facts", "usage", {user: list(spent) for user, spent in self.usage.items()})], [])

    def _forget_lease(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.unclaimed.discard(lease.id)
        self.waiting_at.pop(lease.id, None)
        mark = Ended(lease.owner.user, self.now(), self.clock.ticks())
        self.ended.update(dict.fromkeys(lease.devices, mark))
        self.disown(lease.owner, lease.id)
        self._plan = None

    # ---------------------------------------------------------------- planning

    def current_plan(self) -> Plan:
        """The plan for what is known now; kept until something changes."""
        if self._plan is None:
            seen = views(self.devices.values(), self.leases.values(), self.ended, self.excluded, self.host)
            self._plan = plan(
                self.devices.values(),
                self.leases.values(),
                self.line,
                self.policy,
                self.now(),
                views=seen,
                usage=self.usage,
                closed=self.queue.closed(),
            )
        return self._plan

    def replan(self) -> None:
        """Grant what can be granted. No device is given without a look at it under safe-gpu's lock."""
        if self.sample is None or self._checking is not None or not self.line:
            return self._settle_fresh()
        self._plan = None
        return self._decide()

    def _decide(self) -> None:
        decided = self.current_plan()
        if decided.next_wakeup is not None:
            self._wake_to_plan(decided.next_wakeup)
        wanted = {uuid for grant in decided.grants for uuid in grant.devices}
        if wanted and not wanted <= self._verified:
            return self._verify(wanted)
        if wanted:
            self._grant(decided)
        return self._settle_fresh()

    def _wake_to_plan(self, time: float) -> None:
        """One alarm, the earliest: a plan that is made then sets the next."""
        if not self.now() < self._planned_at <= time:
            self._planned_at = time
            self.alarm(time, "plan")

    def _verify(self, uuids: set[str]) -> None:
        if not self.lock.take():
            if self._blocked is None:
                self._blocked_from = self.now() + GRACE
            self._blocked = self._chooser()
            self.alarm(self.now() + (SOON if self.now() < self._blocked_from else RETRY), "plan")
            return self._settle_fresh()
        if not self.edge.ask("check " + " ".join(sorted(uuids))):
            self.lock.give()
            self._blocked, self._blocked_from = "The GPU driver does not answer.", 0.0
            self.alarm(self.now() + FRESH, "plan")
            return self._settle_fresh()
        self._blocked = None
        self._checking = uuids

    def give_back(self, leases: list[Lease], why: str, also: list[Change] | None = None) -> None:
        """End leases, and have the next plan ready by the time the look at their devices is taken."""
        self.look_ahead(leases)
        self.end(leases, why, also)
        if self._checking is not None:
            self.current_plan()

    def acknowledge(self, connection: Connection, message: Document) -> None:
        """Answer once whoever waits for the devices has been told: they are in more of a hurry."""
        if self._checking is None:
            return self.edge.send(connection, message)
        self._answers.append((connection, message))
        self._answer_by = self.now() + HURRY
        self.alarm(self._answer_by, "answers")

    def _acknowledge(self) -> None:
        answers, self._answers = self._answers, []
        for connection, message in answers:
            self.edge.send(connection, message)

    def _late_answers(self, id: str) -> None:
        if self._answers and self._answer_by <= self.now():
            self._acknowledge()

    def _chooser(self) -> str:
        pid = self.lock.holder()
        who = "Somebody" if pid is None else f"Process {pid}"
        return f"{who} is choosing GPUs with safe-gpu right now."

    def look_ahead(self, leases: Iterable[Lease]) -> None:
        """Ask about devices that are being given back before the plan needs to know, when somebody waits."""
        uuids = {uuid for lease in leases for uuid in lease.devices}
        if self.line and self._checking is None and uuids and self.sample is not None and self.lock.take():
            if self.edge.ask("check " + " ".join(sorted(uuids))):
                self._checking = uuids
            else:
                self.lock.give()

    def _grant(self, decided: Plan) -> None:
        now = self.now()
        made, starting = [], []
        for grant in decided.grants:
            if grant.id not in self.askers:
                starting.append(self.queue.prepare(grant, now))
                continue
            asker = self.askers[grant.id]
            until = None
            if asker.owner.pid is None and asker.waiting.request.duration is not None:
                until = now + asker.waiting.request.duration
            lease = lease_of(grant, asker.waiting, asker.owner, now, until)._replace(note=asker.note)
            made.append((lease, asker))
        try:
            self._commit_grants(made, [change for lease, job, _ in starting for change in Queue.changes(lease, job)])
        except StateError as trouble:
            return self._cannot_grant(trouble, [lease.id for lease, _ in made])
        for lease, asker in made:
            self._hand_over(lease, asker)
        for lease, _, _ in starting:
            self.line.remove(lease.id)
            self._keep(lease)
            for uuid in lease.devices:
                self.ended.pop(uuid, None)
            self._plan = None
        for _, job, before in starting:
            self.queue.launch(job, before)
        return None

    def _commit_grants(self, made: list[tuple[Lease, Asker]], also: list[Change]) -> None:
        changes = list(also)
        for lease, asker in made:
            changes.append(Change("leases", lease.id, lease_document(lease, not asker.claim, asker.token)))
            if lease.id not in self._fresh:
                changes.append(Change("line", lease.id, None))
        events = [self.event("granted", lease, waited=lease.since - asker.waiting.since) for lease, asker in made]
        durable = any(lease.until is not None for lease, _ in made)
        self.commit(changes, events, durable)

    def _hand_over(self, lease: Lease, asker: Asker) -> None:
        connection = self.waiting_at.get(lease.id)
        self.leave(lease.id)
        self._keep(lease)
        for uuid in lease.devices:
            self.ended.pop(uuid, None)
        if asker.claim:
            self.unclaimed.add(lease.id)
        if connection is None:
            self.unclaimed.add(lease.id)
            self.alarm(self.now() + UNCLAIMED, "unclaimed", lease.id)
            return
        if asker.claim:
            self.waiting_at[lease.id] = connection
        self.edge.send(connection, {"granted": self.granted(lease)})

    def _cannot_grant(self, trouble: StateError, ids: list[str]) -> None:
        self.edge.log(f"cannot grant: {trouble.what}")
        for id in ids:
            if id in self._fresh:
                self.refuse(id, trouble)
        self.alarm(self.now() + RETRY_DISK, "plan")

    def granted(self, lease: Lease) -> Document:
        devices = [self.devices[uuid] for uuid in lease.devices if uuid in self.devices]
        return {
            "id": lease.id,
            "devices": [{"label": d.label, "uuid": d.uuid, "name": d.name, "vendor": d.vendor} for d in devices],
            "memory": lease.memory,
            "since": lease.since,
            "until": lease.until,
        }

    # ---------------------------------------------------------------- those who just came

    def _settle_fresh(self) -> None:
        """Whoever was not granted at once is refused, or put on disk and told why it waits."""
        if not self._fresh or self._checking is not None:
            return None
        old = self.sample is None or self.now() - self.sample_time > FRESH
        if old and self.trouble is None and self.edge.ask("all"):
            return None
        if self.sample is None:
            return self._refuse_all(self.trouble or NotGranted("No GPU has been seen yet."))
        decided = self.current_plan()
        if decided.grants and (self._blocked is None or self.now() < self._blocked_from):
            return None
        staying = [id for id in list(self._fresh) if not self._refused(id)]
        self._store_fresh(staying)

    def _refuse_all(self, trouble: GpuleaseError) -> None:
        for id in list(self._fresh):
            self.refuse(id, trouble)

    def _refused(self, id: str) -> bool:
        asker = self.askers[id]
        code, sentence = self.reason(id)
        if code == IMPOSSIBLE:
            self.refuse(id, NotEnoughDevices(sentence, "Ask for less; `gpulease status` shows what is here."))
        elif asker.deadline is not None and asker.deadline <= self.now():
            self.refuse(id, NotGranted(f"Not granted: {_lower(sentence)}"))
        else:
            return False
        return True

    def _store_fresh(self, ids: list[str]) -> None:
        if not ids:
            return None
        try:
            self.commit([Change("line", id, asker_document(self.askers[id])) for id in ids], [])
        except StateError as trouble:
            return self._refuse_all(trouble)
        for id in ids:
            self._fresh.remove(id)
            connection = self.waiting_at.get(id)
            if connection is not None:
                self.edge.send(connection, {"waiting": {"id": id, "place": self.place(id), "why": self.why(id)}})
        return None

    def reason(self, id: str) -> tuple[str, str]:
        """A code and the sentence why `id` waits: the planner's own, or what keeps the planner from being heard."""
        if self.trouble is not None:
            return self.trouble.code, self.trouble.what
        try:
            reason = self.current_plan().reason(id)
        except KeyError:
            return "checking", self._blocked or "It fits, and a last look at its devices is being taken."
        return reason.code, reason.sentence

    def why(self, id: str) -> str:
        return self.reason(id)[1]

    def place(self, id: str) -> int:
        mine = self.line[id]
        order = (mine.request.priority, mine.place or mine.since)
        return 1 + sum((w.request.priority, w.place or w.since) < order for w in self.line)

    # ---------------------------------------------------------------- events of the world

    @property
    def sample_time(self) -> float:
        return self._sampled_at if self.sample is not None else 0.0

    _sampled_at = 0.0

    def sampled(self, sample: Sample) -> None:
        self.sample, self.trouble = sample, None
        self._sampled_at = self.now()
        self.devices = {device.uuid: device for device in sample.devices}
        self._plan = None
        self.queue.seen()
        self._run_after_sample()
        self.replan()

    def checked(self, seen: Mapping[str, Occupancy]) -> None:
        """The look before a grant has been taken. A plan made in the meantime stays if nothing was news."""
        news = False
        for uuid, (used, processes, lost) in seen.items():
            known = self.devices.get(uuid)
            if known is not None and (known.memory_used, known.processes, known.lost) != (used, processes, lost):
                self.devices[uuid] = known._replace(memory_used=used, processes=processes, lost=lost)
                news = True
            self._verified.add(uuid)
        self._checking = None
        if news:
            self._plan = None
        try:
            self._decide()
        finally:
            if self._checking is None:
                self._verified.clear()
                self.lock.give()
            self._acknowledge()

    def failed(self, trouble: GpuleaseError) -> None:
        """The driver did not answer, or with an error. What was known gets old; leases stay as they are."""
        self.trouble = trouble
        self._checking = None
        self._acknowledge()
        self._verified.clear()
        self.lock.give()
        self.edge.log(trouble.what)
        self._run_after_sample()
        if self.sample is None:
            self._refuse_all(trouble)
        else:
            self._settle_fresh()

    def after_sample(self, action: Callable[[], None]) -> None:
        """Do it with a sample that is not old, or when none can be had."""
        if self.sample is not None and self.now() - self.sample_time <= FRESH and self.trouble is None:
            return action()
        if not self.edge.ask("all"):
            return action()
        self._after_sample.append(action)
        return None

    def _run_after_sample(self) -> None:
        actions, self._after_sample = self._after_sample, []
        for action in actions:
            action()

    def process_ended(self, key: Key) -> None:
        if self.queue.endings.process_ended(key):
            return self.replan()
        ids = self._owned.get(key, set()).copy()
        ending = [self.leases[id] for id in ids if id in self.leases]
        for id in ids:
            if id in self.askers:
                self.refuse(id, Cancelled("The process that it was for has ended."))
        if ending:
            self.give_back(ending, "its process ended")
        self.replan()

    def remember_dead(self, key: Key) -> None:
        """Its end could not be written; try again."""
        self._dead.append(key)
        self.alarm(self.now() + RETRY_DISK, "dead")

    def _bury(self, id: str) -> None:
        keys, self._dead = self._dead, []
        for place, key in enumerate(keys):
            try:
                self.process_ended(key)
            except StateError:
                self._dead += keys[place:]
                self.alarm(self.now() + RETRY_DISK, "dead")
                return

    def disconnected(self, connection: Connection) -> None:
        """Whoever waited there has left the line; what was granted and never claimed is given back."""
        self.queue.watching.disconnected(connection)
        ids = [id for id, at in self.waiting_at.items() if at is connection]
        for id in ids:
            del self.waiting_at[id]
        try:
            for id in ids:
                if id in self.askers:
                    self.drop(id)
            unclaimed = [self.leases[id] for id in ids if id in self.unclaimed]
            if unclaimed:
                self.end(unclaimed, "its client left before it took it")
        except StateError:
            for id in ids:
                self.alarm(self.now() + RETRY_DISK, "unclaimed", id)
            raise
        if ids:
            self.replan()

    def next_alarm(self) -> float | None:
        return self._alarms[0][0] if self._alarms else None

    def tick(self) -> None:
        """The clock moved: whatever was due by now happens."""
        now, due = self.now(), []
        while self._alarms and self._alarms[0][0] <= now:
            due.append(heappop(self._alarms))
        for _, what, id in due:
            try:
                ALARMS[what](self, id)
            except StateError as trouble:
                self.edge.log(f"not written, to be tried again: {trouble.what}")
                self.alarm(now + RETRY_DISK, what, id)
        if due:
            self.replan()

    def _until(self, id: str) -> None:
        lease = self.leases.get(id)
        if lease is not None and lease.until is not None and lease.until <= self.now():
            self.end([lease], "its time was over")

    def _deadline(self, id: str) -> None:
        asker = self.askers.get(id)
        if asker is not None and asker.deadline is not None and asker.deadline <= self.now():
            self.refuse(id, NotGranted(f"Not granted in time: {_lower(self.why(id))}"))

    def _unclaimed(self, id: str) -> None:
        if id in self.waiting_at:
            return
        if id in self.unclaimed:
            self.end([self.leases[id]], "nobody came to take it")
        elif id in self.askers:
            self.drop(id)

    def look_again(self) -> None:
        """As long as somebody waits, others' use of the devices is looked at again, by one alarm."""
        if (self.line or self.queue.running) and not self._look_due:
            self._look_due = True
            self.alarm(self.now() + self.settings.polling, "sample")

    def _sample(self, id: str) -> None:
        self._look_due = False
        if (self.line or self.queue.running) and self.now() - self.sample_time >= self.settings.polling * 0.9:
            self.edge.ask("all")
        self.look_again()


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


ALARMS: dict[str, Callable[[Core, str], None]] = {
    "until": Core._until,
    "deadline": Core._deadline,
    "unclaimed": Core._unclaimed,
    "sample": Core._sample,
    "dead": Core._bury,
    "answers": Core._late_answers,
    "usage": Core.save_usage,
    "plan": lambda core, id: None,
    "time-limit": lambda core, id: core.queue.killing.over_time(id),
    "grace": lambda core, id: core.queue.killing.grace_over(id),
    "killed": lambda core, id: core.queue.killing.look(id),
    "tidy": lambda core, id: core.queue.endings.tidy(),
    "late": lambda core, id: core.queue.endings.finish_late(id),
    "broken": lambda core, id: core.queue.endings.end_broken_late(),
    "tell": lambda core, id: core.queue.watching.tell(),
    "hook": lambda core, id: core.queue.endings.hooks.run(),
}
