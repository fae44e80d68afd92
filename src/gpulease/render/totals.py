"""PURE: sums that only grow, for Prometheus: time held, busy and idle by user, grants, and how long these waited.

They are kept by name beside the history, in the commit that writes it: what is told once is never taken back, however
a broker ends. So the minute that has not been written yet is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpulease.model.spans import Span
from gpulease.protocol.messages import Totals

BOUNDS = (1, 10, 60, 300, 900, 3600, 14400, 86400)  # seconds that were waited; the last bucket has no bound
KINDS = ("held", "known", "busy", "idle")  # of time, by user; `known`: of which the driver told what the GPU did
Amounts = dict[str, int]  # by name: milliseconds, or a number of grants


def of_spans(spans: Iterable[Span]) -> Amounts:
    found: Amounts = {}
    for span in spans:
        for holder, use in span.uses.items():
            if not holder.outside:
                add(found, {f"{kind} {holder.user}": getattr(use, kind) for kind in KINDS})
    return found


def of_wait(milliseconds: int) -> Amounts:
    bucket = sum(milliseconds > 1000 * bound for bound in BOUNDS)
    return {f"granted {bucket}": 1, "waited": milliseconds}


def add(amounts: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def shown(amounts: Mapping[str, int], user: str | None) -> Totals:
    """Of one user; None: of all. Waits are of all together."""
    by_user: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for name, amount in sorted(amounts.items()):
        kind, _, whose = name.partition(" ")
        if kind in by_user and user in (None, whose):
            by_user[kind][whose] = amount / 1000
    buckets = [amounts.get(f"granted {bucket}", 0) for bucket in range(len(BOUNDS) + 1)]
    waits = [[bound, sum(buckets[: at + 1])] for at, bound in enumerate(BOUNDS)]
    return {
        "held": by_user["held"],
        "known": by_user["known"],
        "busy": by_user["busy"],
        "idle": by_user["idle"],
        "waits": waits,
        "granted": sum(buckets),
        "waited": amounts.get("waited", 0) / 1000,
        "everybody": user is None,
    }
