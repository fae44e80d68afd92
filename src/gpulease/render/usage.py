"""PURE: the rows of usage added up by user, group, label, GPU or day. Not for how they are shown
(cli/commands/usage.py).
"""

from __future__ import annotations

from gpulease.errors import UsageError
from gpulease.model.spans import in_order

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from gpulease.protocol.messages import CountRow, UsageRow, UseRow

    Day = Callable[[float], str]

BY = ("user", "group", "label", "gpu", "day")
NONE = "-"  # no label, no group, nobody visible
TIMES = ("held", "known", "busy", "idle")
ENDS = ("complete", "failed", "out-of-memory", "killed", "lost", "invalid")


class Sum:
    """What is added up for one line."""

    def __init__(self) -> None:
        self.times = dict.fromkeys((*TIMES, "outside", "waited"), 0.0)
        self.granted = 0
        self.jobs: dict[str, int] = {}

    def use(self, row: Mapping[str, Any]) -> None:
        if row["outside"]:
            self.times["outside"] += row["held"]
        else:
            for name in TIMES:
                self.times[name] += row[name]

    def count(self, row: Mapping[str, Any]) -> None:
        self.granted += row["granted"]
        self.times["waited"] += row["waited"]
        for how, number in row["jobs"].items():
            self.jobs[how] = self.jobs.get(how, 0) + number

    def add(self, row: Mapping[str, Any]) -> None:
        """What was added up already, elsewhere."""
        for name in (*TIMES, "outside"):
            self.times[name] += row[name]
        self.count({**row, "waited": (row["mean_wait"] or 0.0) * row["granted"]})

    def row(self, name: str) -> UsageRow:
        held, known, busy, idle, outside, waited = (round(one, 3) for one in self.times.values())
        return {
            "name": name,
            "held": held,
            "known": known,
            "busy": busy,
            "idle": idle,
            "outside": outside,
            "idle_share": round(idle / known, 4) if known else None,
            "granted": self.granted,
            "mean_wait": round(waited / self.granted, 3) if self.granted else None,
            "jobs": {how: self.jobs[how] for how in ENDS if how in self.jobs},
        }


def add_up(uses: Iterable[UseRow], counts: Iterable[CountRow], by: str, day: Day) -> tuple[list[UsageRow], UsageRow]:
    """A row for each, and one for all together: who is in two groups, and a job on two GPUs, counts there once only.

    `day` names the day of a moment, which is another one in another time zone.
    """
    if by not in BY:
        raise UsageError(f"Usage cannot be shown by {by[:40]!r}.", f"Give one of {', '.join(BY)}.")
    sums: dict[str, Sum] = {}
    total = Sum()
    for use in uses:
        for one in (total, *(sums.setdefault(name, Sum()) for name in _names(use, by, day))):
            one.use(use)
    for count in counts:
        for one in (total, *(sums.setdefault(name, Sum()) for name in _names(count, by, day))):
            one.count(count)
    rows = [one.row(name) for name, one in sums.items()]
    return sorted(rows, key=lambda row: _place(row, by)), total.row("total")


def of_hosts(documents: Mapping[str, Mapping[str, Any]], by: str) -> tuple[list[UsageRow], UsageRow]:
    """What several hosts added up, as one: a user of two hosts has one row, a GPU has its host's name before it."""
    sums: dict[str, Sum] = {}
    total = Sum()
    for host, document in documents.items():
        total.add(document["total"])
        for row in document["rows"]:
            sums.setdefault(f"{host}:{row['name']}" if by == "gpu" else row["name"], Sum()).add(row)
    rows = [one.row(name) for name, one in sums.items()]
    return rows if by == "gpu" else sorted(rows, key=lambda row: _place(row, by)), total.row("total")


def _names(row: Mapping[str, Any], by: str, day: Day) -> Iterable[str]:
    if by == "gpu":
        return row["devices"] if "devices" in row else (row["device"],)
    if by == "day":
        return (day(row["time"]),)
    if by == "group":
        return row["groups"] or (NONE,)
    return (row[by] or NONE,)


def _place(row: UsageRow, by: str) -> tuple[Any, ...]:
    if by == "gpu":
        return in_order(row["name"])
    return (row["name"],) if by == "day" else (-row["held"], -row["outside"], row["name"])
