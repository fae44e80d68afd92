"""PURE: the last day, hour by GPU, coloured by who held it most; and one user's GPU-hours, held beside used."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from zlib import crc32

from gpulease.web.cards import meter
from gpulease.web.markup import Markup, tag
from gpulease.web.picture import PagePicture, Row

HOURS = 24
HOUR = 3600.0
COLOURS = 11  # classes holder-0 … of page.css
HATCHED = 0.5  # share of the time that the holder did nothing
SEEN = 0.02  # of an hour, below which a cell stays empty


def colours(users: Iterable[str]) -> dict[str, str]:
    """The same at each visit, and different ones as far as there are enough: a cell has the user's letters too."""
    found: dict[str, int] = {}
    for user in sorted(users):
        wanted = crc32(user.encode()) % COLOURS
        free = [at % COLOURS for at in range(wanted, wanted + COLOURS) if at % COLOURS not in found.values()]
        found[user] = free[0] if free else wanted
    return {user: f"holder-{at}" for user, at in found.items()}


def hours_until(now: float) -> list[float]:
    """The beginnings of the last hours, the current one last."""
    last = now - now % HOUR
    return [last - HOUR * ago for ago in reversed(range(HOURS))]


def day_rows(picture: PagePicture) -> dict[str, Markup]:
    hours = hours_until(picture.time)
    by_place = {(row["uuid"], row["time"]): row for row in picture.hours}
    painted = colours({one["user"] for row in picture.hours for one in row["holders"] if not one["outside"]})
    labels = {row["uuid"]: row["label"] for row in picture.devices}
    rows = {"hours": _heading(hours)}
    for uuid, label in labels.items():
        cells = [
            _cell(by_place.get((uuid, hour)), min(HOUR, max(60.0, picture.time - hour)), painted) for hour in hours
        ]
        rows[f"gpu-{label}"] = tag("tr", tag("th", f"GPU {label}", scope="row"), *cells, id=f"day-gpu-{label}")
    rows["legend"] = _legend(painted)
    return rows


def _heading(hours: list[float]) -> Markup:
    names = [time.strftime("%H", time.localtime(hour)) for hour in hours]
    return tag("tr", tag("td"), *(tag("th", name, scope="col") for name in names), id="day-hours")


def _cell(row: Row | None, span: float, painted: Mapping[str, str]) -> Markup:
    """`span`: how much of the hour has passed."""
    holder = row["holders"][0] if row and row["holders"] else None
    if holder is None or holder["held"] < SEEN * span:
        return tag("td", class_="nobody")
    idle = holder["known"] and holder["idle"] / holder["known"] >= HATCHED
    name = "outside" if holder["outside"] else painted[holder["user"]]
    return tag(
        "td",
        tag("span", holder["user"][:2], aria_hidden="true"),
        tag("span", _sentence(holder, span), class_="unseen"),
        class_=" ".join([name, *(["idle"] if idle else []), f"part-{_quarters(holder['held'] / span)}"]),
        title=_sentence(holder, span),
    )


def _quarters(share: float) -> int:
    return min(4, max(1, round(4 * share)))


def _sentence(holder: Row, span: float) -> str:
    busy = f", busy {holder['busy'] / holder['known']:.0%}" if holder["known"] else ""
    how = "used outside by" if holder["outside"] else "held by"
    return f"{how} {holder['user']} {min(1.0, holder['held'] / span):.0%}{busy}"


def _legend(painted: Mapping[str, str]) -> Markup:
    marks = [(name, user[:2], user) for user, name in painted.items()]
    marks += [("idle", "", "held and idle"), ("outside", "", "outside use")]
    shown = [
        tag("span", tag("span", letters, class_=f"mark {name}", aria_hidden="true"), f" {what}", class_="marked")
        for name, letters, what in marks
    ]
    return tag("tr", tag("td", *shown, colspan=HOURS + 1, class_="legend"), id="day-legend")


# -------------------------------------------------------------------- usage


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
