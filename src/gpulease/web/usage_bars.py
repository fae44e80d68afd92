"""PURE: one user's GPU-hours, held beside used."""

from __future__ import annotations

from gpulease.web.cards import meter
from gpulease.web.markup import Markup, tag
from gpulease.web.picture import Row

HOUR = 3600.0


def usage_row(row: Row, rows: tuple[Row, ...], id: str) -> Markup:
    most = max((one["held"] for one in rows), default=0.0) or 1.0
    idle = "" if row["idle_share"] is None else f"{row['idle_share']:.0%}"
    bars = tag("td", meter(row["held"] / most, "held"), meter(row["busy"] / most, "busy"), class_="bars")
    cells = (_hours(row["held"]), _hours(row["busy"]), idle)
    return tag(
        "tr", tag("th", row["name"], scope="row"), bars, *(tag("td", cell, class_="number") for cell in cells), id=id
    )


def _hours(seconds: float) -> str:
    return f"{seconds / HOUR:.1f} h"
