"""Fair share: GPU-seconds that each user had lately, halved with every half-life; and whose declarations are believed.

The caller keeps a `Usage` and charges each lease to it as it ends; leases that still run are counted by the plan
itself. Not here: the order within one user's own requests.

A declared time lets a short request use devices that are held for another. A user whose leases outlasted what they
declared is doubted until their record is good again: until leases that kept to what they declared have made up for the
excess. The caller keeps the records and gives them to each plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple

from gpulease.model.values import Device, Lease
from gpulease.planner.policy import HOUR, Policy


class Spent(NamedTuple):
    """GPU-seconds as they counted at one moment."""

    gpu_seconds: float
    at: float


Usage = Mapping[str, Spent]  # by user


def weight_of(lease: Lease, devices: Mapping[str, Device]) -> float:
    """How many GPUs a lease is: its devices, or for a share its part of the device's memory."""
    if lease.memory is None:
        return float(len(lease.devices))
    total = devices[lease.devices[0]].memory_total if lease.devices[0] in devices else None
    return min(1.0, lease.memory / total) if total else 1.0


def decayed(spent: Spent, now: float, policy: Policy) -> float:
    return float(spent.gpu_seconds * 0.5 ** (max(0.0, now - spent.at) / policy.half_life))


def accrued(weight: float, since: float, now: float, policy: Policy) -> float:
    """What a lease counts that has run from `since` to `now`, its older seconds for less."""
    span = max(0.0, now - since)
    life = policy.half_life / log(2)
    return float(weight * life * (1 - 0.5 ** (span / policy.half_life)))


def charged(usage: Usage, lease: Lease, weight: float, now: float, policy: Policy) -> dict[str, Spent]:
    """The usage after a lease ended at `now`."""
    user = lease.owner.user
    before = decayed(usage[user], now, policy) if user in usage else 0.0
    return {**usage, user: Spent(before + accrued(weight, lease.since, now, policy), now)}


def forget(usage: Usage, now: float, policy: Policy, below: float = 1.0) -> dict[str, Spent]:
    """The usage without users whose share has faded to nothing, so that it does not grow for ever."""
    return {user: spent for user, spent in usage.items() if decayed(spent, now, policy) >= below}


class Standing:
    """How much each user has had, during one plan."""

    def __init__(
        self,
        usage: Usage,
        leases: Iterable[Lease],
        devices: Mapping[str, Device],
        policy: Policy,
        now: float,
    ) -> None:
        self.policy = policy
        self.totals = {user: decayed(spent, now, policy) for user, spent in usage.items()}
        for lease in leases:
            weight = weight_of(lease, devices)
            least = weight * policy.minimum_charge  # until it ends: then it counts for what it was
            self._add(lease.owner.user, max(least, accrued(weight, lease.since, now, policy)))

    def of(self, user: str) -> float:
        return self.totals.get(user, 0.0)

    def charge(self, user: str, weight: float) -> None:
        """Count a grant of this plan, so that devices that fall free together go round."""
        self._add(user, weight * self.policy.minimum_charge)

    def _add(self, user: str, amount: float) -> None:
        self.totals[user] = self.totals.get(user, 0.0) + amount


# -------------------------------------------------------------------- declared times

TOLERANCE = 0.1  # of the declared time
LEAST = 10.0  # seconds that anybody may be late
MOST = HOUR  # of excess that has to be made up for
GOOD = 1.0  # seconds of excess that count as none

Records = Mapping[str, Spent]  # by user: seconds of excess, which fade as usage does


def excess(lease: Lease, now: float) -> float:
    """Seconds that a lease has gone on beyond what it declared. A reservation ends by the clock, or was renewed."""
    if lease.duration is None or lease.kind == "reservation" or not lease.devices:
        return 0.0
    return max(0.0, now - lease.since - lease.duration - max(LEAST, TOLERANCE * lease.duration))


def recorded(records: Records, lease: Lease, now: float, policy: Policy) -> dict[str, Spent]:
    """The records after a lease ended at `now`."""
    user = lease.owner.user
    if lease.duration is None or lease.kind == "reservation" or not lease.devices:
        return dict(records)
    over = excess(lease, now)
    before = decayed(records[user], now, policy) if user in records else 0.0
    left = before + over if over else before - max(0.0, min(lease.duration, now - lease.since))
    others = {name: record for name, record in records.items() if name != user}
    return {**others, user: Spent(min(MOST, left), now)} if left >= GOOD else others


def doubted(records: Usage, leases: Iterable[Lease], now: float, policy: Policy) -> frozenset[str]:
    """Users who are not believed: for what they had, or for what they still have."""
    late = {lease.owner.user for lease in leases if excess(lease, now) >= GOOD}
    return frozenset(late | {user for user, record in records.items() if decayed(record, now, policy) >= GOOD})
