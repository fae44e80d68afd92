"""Who gets what: the plan, the look at the devices before each grant, the commit, and the word to the client.

No device is given without a look at it that was taken under safe-gpu's lock, after its last lease ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from gpulease.broker.asking import FRESH
from gpulease.broker.queue import Queue
from gpulease.broker.records import Asker, lease_document
from gpulease.broker.views import views
from gpulease.errors import StateError
from gpulease.model import Lease, Process
from gpulease.planner import Plan, lease_of, plan
from gpulease.stores.base import Change, Document

if TYPE_CHECKING:
    from gpulease.broker.connection import Connection
    from gpulease.broker.core import Core

RETRY = 0.05  # seconds between looks at safe-gpu's lock, while one of its users chooses
GRACE = 0.5  # seconds that it may be held before anybody is told: another broker needs milliseconds
SOON = 0.005  # seconds between looks during these
RETRY_DISK = 5.0  # seconds before a commit that failed is tried again
UNCLAIMED = 10.0  # seconds for a client to come back after the broker was started anew
HURRY = 0.02  # seconds that whoever gives back waits for its answer, at most

Occupancy = tuple[int | None, tuple[Process, ...] | None, str | None]  # memory in use, processes, why lost


class Granting:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.checking: set[str] | None = None  # devices that are being looked at
        self.blocked: str | None = None  # why nothing can be looked at
        self._told_from = 0.0  # when those who come are told so
        self._verified: set[str] = set()
        self._plan: Plan | None = None
        self._planned_at = 0.0
        self._answers: list[tuple[Connection, Document]] = []
        self._answer_by = 0.0

    # ---------------------------------------------------------------- the plan

    def stale(self) -> None:
        """Something changed that the plan was made of."""
        self._plan = None

    def is_blocked(self) -> bool:
        return self.blocked is not None and self._core.now() >= self._told_from

    def current_plan(self) -> Plan:
        """The plan for what is known now; kept until something changes."""
        if self._plan is None:
            core = self._core
            devices, leases = core.devices.values(), core.leases.values()
            self._plan = plan(
                devices,
                leases,
                core.line,
                core.policy,
                core.now(),
                views=views(devices, leases, core.ended, core.excluded, core.host),
                usage=core.usage,
                closed=core.queue.closed(),
            )
        return self._plan

    def replan(self) -> None:
        """Grant what can be granted. No device is given without a look at it under safe-gpu's lock."""
        if self._core.sample is None or self.checking is not None or not self._core.line:
            return self._core.asking.settle()
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
        return self._core.asking.settle()

    def _wake_to_plan(self, time: float) -> None:
        """One alarm, the earliest: a plan that is made then sets the next."""
        if not self._core.now() < self._planned_at <= time:
            self._planned_at = time
            self._core.alarm(time, "plan")

    def _verify(self, uuids: set[str]) -> None:
        if not self._core.lock.take():
            if self.blocked is None:
                self._told_from = self._core.now() + GRACE
            self.blocked = self._chooser()
            self._core.alarm(self._core.now() + (SOON if self._core.now() < self._told_from else RETRY), "plan")
            return self._core.asking.settle()
        if not self._core.edge.ask("check " + " ".join(sorted(uuids))):
            self._core.lock.give()
            self.blocked, self._told_from = "The GPU driver does not answer.", 0.0
            self._core.alarm(self._core.now() + FRESH, "plan")
            return self._core.asking.settle()
        self.blocked = None
        self.checking = uuids

    # ---------------------------------------------------------------- giving back

    def give_back(self, leases: list[Lease], why: str, also: list[Change] | None = None) -> None:
        """End leases, and have the next plan ready by the time the look at their devices is taken."""
        self.look_ahead(leases)
        self._core.holding.end(leases, why, also)
        if self.checking is not None:
            self.current_plan()

    def acknowledge(self, connection: Connection, message: Document) -> None:
        """Answer once whoever waits for the devices has been told: they are in more of a hurry."""
        if self.checking is None:
            return self._core.edge.send(connection, message)
        self._answers.append((connection, message))
        self._answer_by = self._core.now() + HURRY
        self._core.alarm(self._answer_by, "answers")

    def _acknowledge(self) -> None:
        answers, self._answers = self._answers, []
        for connection, message in answers:
            self._core.edge.send(connection, message)

    def answer_late(self) -> None:
        if self._answers and self._answer_by <= self._core.now():
            self._acknowledge()

    def _chooser(self) -> str:
        pid = self._core.lock.holder()
        who = "Somebody" if pid is None else f"Process {pid}"
        return f"{who} is choosing GPUs with safe-gpu right now."

    def look_ahead(self, leases: Iterable[Lease]) -> None:
        """Ask about devices that are being given back before the plan needs to know, when somebody waits."""
        uuids = {uuid for lease in leases for uuid in lease.devices}
        if not self._core.line or self.checking is not None or not uuids or self._core.sample is None:
            return
        if self._core.lock.take():
            if self._core.edge.ask("check " + " ".join(sorted(uuids))):
                self.checking = uuids
            else:
                self._core.lock.give()

    # ---------------------------------------------------------------- giving

    def _grant(self, decided: Plan) -> None:
        now = self._core.now()
        made, starting = [], []
        for grant in decided.grants:
            if grant.id not in self._core.askers:
                starting.append(self._core.queue.prepare(grant, now))
                continue
            asker = self._core.askers[grant.id]
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
            self._core.line.remove(lease.id)
            self._core.holding.keep(lease)
            for uuid in lease.devices:
                self._core.ended.pop(uuid, None)
            self._plan = None
        for _, job, before in starting:
            self._core.queue.launch(job, before)
        return None

    def _commit_grants(self, made: list[tuple[Lease, Asker]], also: list[Change]) -> None:
        changes = list(also)
        for lease, asker in made:
            changes.append(Change("leases", lease.id, lease_document(lease, not asker.claim, asker.token)))
            if lease.id not in self._core.asking.fresh:
                changes.append(Change("line", lease.id, None))
        events = [self._core.event("granted", lease, waited=lease.since - asker.waiting.since) for lease, asker in made]
        durable = any(lease.until is not None for lease, _ in made)
        self._core.commit(changes, events, durable)

    def _hand_over(self, lease: Lease, asker: Asker) -> None:
        connection = self._core.waiting_at.get(lease.id)
        self._core.asking.leave(lease.id)
        self._core.holding.keep(lease)
        for uuid in lease.devices:
            self._core.ended.pop(uuid, None)
        if asker.claim:
            self._core.unclaimed.add(lease.id)
        if connection is None:
            self._core.unclaimed.add(lease.id)
            self._core.alarm(self._core.now() + UNCLAIMED, "unclaimed", lease.id)
            return
        if asker.claim:
            self._core.waiting_at[lease.id] = connection
        self._core.edge.send(connection, {"granted": self.granted(lease)})

    def _cannot_grant(self, trouble: StateError, ids: list[str]) -> None:
        self._core.edge.log(f"cannot grant: {trouble.what}")
        for id in ids:
            if id in self._core.asking.fresh:
                self._core.asking.refuse(id, trouble)
        self._core.alarm(self._core.now() + RETRY_DISK, "plan")

    def granted(self, lease: Lease) -> Document:
        devices = [self._core.devices[uuid] for uuid in lease.devices if uuid in self._core.devices]
        return {
            "id": lease.id,
            "devices": [{"label": d.label, "uuid": d.uuid, "name": d.name, "vendor": d.vendor} for d in devices],
            "memory": lease.memory,
            "since": lease.since,
            "until": lease.until,
        }

    # ---------------------------------------------------------------- the look

    def checked(self, seen: Mapping[str, Occupancy]) -> None:
        """The look before a grant has been taken. A plan made in the meantime stays if nothing was news."""
        news = False
        for uuid, (used, processes, lost) in seen.items():
            known = self._core.devices.get(uuid)
            if known is not None and (known.memory_used, known.processes, known.lost) != (used, processes, lost):
                self._core.devices[uuid] = known._replace(memory_used=used, processes=processes, lost=lost)
                news = True
            self._verified.add(uuid)
        self.checking = None
        if news:
            self._plan = None
        try:
            self._decide()
        finally:
            if self.checking is None:
                self._verified.clear()
                self._core.lock.give()
            self._acknowledge()

    def give_up(self) -> None:
        """The look could not be taken."""
        self.checking = None
        self._acknowledge()
        self._verified.clear()
        self._core.lock.give()
