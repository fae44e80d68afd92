"""Whether a declared time is believed: it lets a short request use devices that are held for another.

A user whose leases outlasted what they declared is doubted until their record is good again: until leases that kept
to what they declared have made up for the excess. The caller keeps the records and gives them to each plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpulease.model.values import Lease
from gpulease.planner.fairness import Spent, Usage, decayed
from gpulease.planner.policy import HOUR, Policy

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
