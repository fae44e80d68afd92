"""Leases that are held: whose they are, how they end, and how much of their user's share they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpulease.broker.granting import RETRY_DISK
from gpulease.broker.views import Ended
from gpulease.errors import Cancelled, StateError
from gpulease.model import Lease, Owner
from gpulease.planner import forget, settle, weight_of
from gpulease.stores.base import Change

if TYPE_CHECKING:
    from gpulease.broker.core import Core

SAVE_USAGE = 10.0  # seconds between saves of who has used how much

Key = tuple[int, int | None]  # pid, start time


class Holding:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._owned: dict[Key, set[str]] = {}  # leases and requests, by the process that they end with
        self._dead: list[Key] = []  # whose end could not be written yet
        self._usage_due = False

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
            self._core.edge.forget(key)

    def keep(self, lease: Lease) -> None:
        self._core.leases[lease.id] = lease
        self.own(lease.owner, lease.id)
        if lease.until is not None:
            self._core.alarm(lease.until, "until", lease.id)

    def end(self, leases: list[Lease], why: str, also: list[Change] | None = None) -> None:
        """Give back. The devices are free once a look at them, taken later, finds nobody there."""
        now, usage = self._core.now(), self._core.usage
        for lease in leases:
            usage = settle(usage, lease, weight_of(lease, self._core.devices), now, self._core.policy)
        usage = forget(usage, now, self._core.policy)
        changes = [Change("leases", lease.id, None) for lease in leases]
        self._core.commit([*changes, *(also or [])], [self._core.event("ended", lease, why=why) for lease in leases])
        if not self._usage_due:
            self._usage_due = True
            self._core.alarm(now + SAVE_USAGE, "usage")
        self._core.usage = dict(usage)
        for lease in leases:
            self._forget_lease(lease)

    def save_usage(self) -> None:
        """Fair share may lose a few seconds to a crash; what was granted never does."""
        self._usage_due = False
        usage = {user: list(spent) for user, spent in self._core.usage.items()}
        self._core.commit([Change("facts", "usage", usage)], [])

    def _forget_lease(self, lease: Lease) -> None:
        del self._core.leases[lease.id]
        self._core.unclaimed.discard(lease.id)
        self._core.waiting_at.pop(lease.id, None)
        mark = Ended(lease.owner.user, self._core.now(), self._core.clock.ticks())
        self._core.ended.update(dict.fromkeys(lease.devices, mark))
        self.disown(lease.owner, lease.id)
        self._core.granting.stale()

    def process_ended(self, key: Key) -> None:
        if self._core.queue.endings.process_ended(key):
            return self._core.granting.replan()
        ids = self._owned.get(key, set()).copy()
        ending = [self._core.leases[id] for id in ids if id in self._core.leases]
        for id in ids:
            if id in self._core.askers:
                self._core.asking.refuse(id, Cancelled("The process that it was for has ended."))
        if ending:
            self._core.granting.give_back(ending, "its process ended")
        self._core.granting.replan()

    def remember_dead(self, key: Key) -> None:
        """Its end could not be written; try again."""
        self._dead.append(key)
        self._core.alarm(self._core.now() + RETRY_DISK, "dead")

    def bury(self) -> None:
        keys, self._dead = self._dead, []
        for place, key in enumerate(keys):
            try:
                self.process_ended(key)
            except StateError:
                self._dead += keys[place:]
                self._core.alarm(self._core.now() + RETRY_DISK, "dead")
                return

    def time_over(self, id: str) -> None:
        lease = self._core.leases.get(id)
        if lease is not None and lease.until is not None and lease.until <= self._core.now():
            self.end([lease], "its time was over")

    def nobody_came(self, id: str) -> None:
        if id in self._core.waiting_at:
            return
        if id in self._core.unclaimed:
            self.end([self._core.leases[id]], "nobody came to take it")
        elif id in self._core.askers:
            self._core.asking.drop(id)
