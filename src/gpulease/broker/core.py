"""The only writer: one event at a time, plan, commit, then effects.

Events come in as method calls: a client's message, a process's end, a sample, the clock. What must be true before
anyone is told is committed first. Not here: sockets, pidfds and the sampler, which are the edge (server.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, Protocol

from gpulease.broker import settings
from gpulease.broker.asking import FRESH, Asking
from gpulease.broker.clock import Clock
from gpulease.broker.connection import Connection
from gpulease.broker.granting import RETRY_DISK, UNCLAIMED, Granting
from gpulease.broker.holding import Holding, Key
from gpulease.broker.neighbours import SafeGpuLock
from gpulease.broker.queue import Queue
from gpulease.broker.records import Asker, read_asker, read_lease
from gpulease.broker.settings import Settings
from gpulease.broker.views import Ended
from gpulease.errors import GpuleaseError, StateError
from gpulease.job import OPEN
from gpulease.messages import error
from gpulease.model import Device, Lease, Owner, Sample
from gpulease.places import simulated
from gpulease.planner import Line, Policy, Spent
from gpulease.stores.base import Change, Document, Event, Store

KEEP_EVENTS = 90 * 86400.0


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
        self.asking, self.granting, self.holding = Asking(self), Granting(self), Holding(self)
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
        self._alarms: list[tuple[float, str, str]] = []
        self._after_sample: list[Callable[[], None]] = []
        self._last_since = 0.0
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
        self.granting.stale()

    def _load_leases(self) -> None:
        for document in self.store.load("leases").values():
            lease, claimed = read_lease(document)
            self.holding.keep(lease)
            if document.get("token"):
                self.tokens[lease.owner.uid, document["token"]] = lease.id
            if not claimed:
                self.unclaimed.add(lease.id)
                self.alarm(self.now() + UNCLAIMED, "unclaimed", lease.id)
        for lease in list(self.leases.values()):
            if lease.kind != "job" and not self._alive(lease.owner):
                self.holding.end([lease], "its process ended while no broker ran")

    def _load_line(self) -> None:
        gone = []
        for document in self.store.load("line").values():
            asker = read_asker(document)
            if not self._alive(asker.owner):
                gone.append(asker.waiting.id)
                continue
            self.asking.enter(asker, fresh=False)
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

    def guarded(self, connection: Connection, action: Callable[[], None]) -> None:
        """Do it; an error is the client's answer."""
        try:
            action()
        except GpuleaseError as trouble:
            self.edge.send(connection, error(trouble))

    # ---------------------------------------------------------------- events of the world

    @property
    def sample_time(self) -> float:
        return self._sampled_at if self.sample is not None else 0.0

    _sampled_at = 0.0

    def sampled(self, sample: Sample) -> None:
        self.sample, self.trouble = sample, None
        self._sampled_at = self.now()
        self.devices = {device.uuid: device for device in sample.devices}
        self.granting.stale()
        self.queue.seen()
        self._run_after_sample()
        self.granting.replan()

    def failed(self, trouble: GpuleaseError) -> None:
        """The driver did not answer, or with an error. What was known gets old; leases stay as they are."""
        self.trouble = trouble
        self.granting.give_up()
        self.edge.log(trouble.what)
        self._run_after_sample()
        if self.sample is None:
            self.asking.refuse_all(trouble)
        else:
            self.asking.settle()

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

    def disconnected(self, connection: Connection) -> None:
        """Whoever waited there has left the line; what was granted and never claimed is given back."""
        self.queue.watching.disconnected(connection)
        ids = [id for id, at in self.waiting_at.items() if at is connection]
        for id in ids:
            del self.waiting_at[id]
        try:
            for id in ids:
                if id in self.askers:
                    self.asking.drop(id)
            unclaimed = [self.leases[id] for id in ids if id in self.unclaimed]
            if unclaimed:
                self.holding.end(unclaimed, "its client left before it took it")
        except StateError:
            for id in ids:
                self.alarm(self.now() + RETRY_DISK, "unclaimed", id)
            raise
        if ids:
            self.granting.replan()

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
            self.granting.replan()

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


ALARMS: dict[str, Callable[[Core, str], None]] = {
    "until": lambda core, id: core.holding.time_over(id),
    "deadline": lambda core, id: core.asking.deadline(id),
    "unclaimed": lambda core, id: core.holding.nobody_came(id),
    "sample": Core._sample,
    "dead": lambda core, id: core.holding.bury(),
    "answers": lambda core, id: core.granting.answer_late(),
    "usage": lambda core, id: core.holding.save_usage(),
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
