"""Moments as people read them, in tables and in full; times to come in a few letters."""

from __future__ import annotations

from time import localtime, strftime

from gpulease.model.quantities import span_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NEAR = 30 * 86400  # seconds within which a date needs no year, also across New Year


def stamp(moment: float) -> str:
    """In full: `2026-11-17 08:30:05`."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(moment))


def clock(moment: float, now: float, seconds: bool = False) -> str:
    """For a table: the time of day; with the date unless it is today's, with the year unless that is plain."""
    then, today = localtime(moment), localtime(now)
    date = "%Y-%m-%d " if then[0] != today[0] and abs(moment - now) > NEAR else "%m-%d "
    return strftime(("" if then[:3] == today[:3] else date) + ("%H:%M:%S" if seconds else "%H:%M"), then)


def start_text(row: Mapping[str, Any], now: float) -> str:
    """When a request of the line, or a job, should start: a range, `late`, or nothing where nobody can say."""
    if row.get("expected_missed") is not None:
        return "late"
    start, sure = row.get("expected_start"), row.get("sure_by")
    if start is None and sure is not None:
        return f"within {span_text(max(0.0, sure - now)).replace(' ', '')}"
    return start_in(start, row.get("expected_latest"), now)


def start_in(moment: float | None, latest: float | None, now: float) -> str:
    """When something should start: `in 10min`, or `in 10min-2h` with the latest; nothing where nobody can say."""
    if moment is None:
        return ""
    likely, last = (span_text(max(0.0, one - now)).replace(" ", "") for one in (moment, latest or moment))
    if moment - now < 1:
        return "soon" if latest is None or latest - now < 1 else f"within {last}"
    return f"in {likely}" if likely == last else f"in {likely}-{last}"


def span(seconds: float) -> str:
    """`42s`, `3m10s`, `2h05m`, `3d04h`."""
    whole = max(0, int(seconds))
    for size, unit, small, rest in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small:02d}{rest}"
    return f"{whole}s"
