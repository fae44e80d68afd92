"""Quotas: how many devices and shares a user, a group or a priority may hold at once.

Not here: whether a device is free. A limit that is reached is named, so that the reason can say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpulease.model import Lease
from gpulease.planner.line import Party
from gpulease.planner.policy import Limit, Policy

UNLIMITED = 1 << 62


class Reached(NamedTuple):
    """A limit that a request would exceed."""

    limit: Limit
    name: str  # who it counts for; a user or group that "*" stands for
    what: str  # "gpus" or "shares"
    most: int
    used: int


class Ledger:
    """What is held, by everything that a limit can name; updated as a plan grants."""

    def __init__(self, leases: Iterable[Lease], policy: Policy) -> None:
        self.limits = policy.limits
        self.named = {(limit.scope, limit.name) for limit in policy.limits}
        self.used: Counter[tuple[str, str, str]] = Counter()
        if self.limits:
            for lease in leases:
                owner = lease.owner
                party = Party(owner.user, owner.groups)
                self.add(party, lease.priority, len(lease.devices), lease.memory is not None)

    def add(self, party: Party, priority: int, gpus: int, share: bool) -> None:
        what, amount = ("shares", 1) if share else ("gpus", gpus)
        for limit, name in self._applying(party, priority):
            self.used[limit.scope, _counted(limit, name), what] += amount

    def reached(self, party: Party, priority: int, gpus: int, share: bool) -> Reached | None:
        """The first limit that so many more devices, or one more share, would exceed."""
        what, amount = ("shares", 1) if share else ("gpus", gpus)
        for limit, name in self._applying(party, priority):
            most = limit.shares if share else limit.gpus
            used = self.used[limit.scope, _counted(limit, name), what]
            if most is not None and used + amount > most:
                return Reached(limit, name, what, most, used)
        return None

    def left(self, party: Party, priority: int, share: bool) -> int:
        """How many more whole devices, or shares, every limit allows."""
        left = UNLIMITED
        for limit, name in self._applying(party, priority) if self.limits else ():
            most = limit.shares if share else limit.gpus
            if most is not None:
                used = self.used[limit.scope, _counted(limit, name), "shares" if share else "gpus"]
                left = min(left, most - used)
        return left

    def _applying(self, party: Party, priority: int) -> Iterator[tuple[Limit, str]]:
        for limit in self.limits:
            if limit.scope == "priority":
                if priority >= int(limit.name):
                    yield limit, limit.name
                continue
            for name in (party.user,) if limit.scope == "user" else party.groups:
                # A limit with a name stands in the place of the one for everybody.
                everybody = limit.name == "*" and (limit.scope, name) not in self.named
                if limit.name == name or everybody:
                    yield limit, name


def _counted(limit: Limit, name: str) -> str:
    return f">={name}" if limit.scope == "priority" else name
