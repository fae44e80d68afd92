"""Moments as people read them, in tables and in full; times to come in a few letters."""

from __future__ import annotations

import time

from gpulease.quantities import span_text

NEAR = 30 * 86400  # seconds within which a date needs no year, also across New Year


def stamp(moment: float) -> str:
    """In full: `2026-11-17 08:30:05`."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def clock(moment: float, now: float | None = None, seconds: bool = False) -> str:
    """For a table: the time of day; with the date unless it is today's, with the year unless that is plain."""
    now = time.time() if now is None else now
    then, today = time.localtime(moment), time.localtime(now)
    date = "%Y-%m-%d " if then[0] != today[0] and abs(moment - now) > NEAR else "%m-%d "
    return time.strftime(("" if then[:3] == today[:3] else date) + ("%H:%M:%S" if seconds else "%H:%M"), then)


def start_in(moment: float | None, latest: float | None = None, now: float | None = None) -> str:
    """When something should start: `in 10min`, or `in 10min-2h` with the latest; nothing where nobody can say."""
    if moment is None:
        return ""
    now = time.time() if now is None else now
    likely, last = (span_text(max(0.0, one - now)).replace(" ", "") for one in (moment, latest or moment))
    if moment - now < 1:
        return "soon" if latest is None or latest - now < 1 else f"within {last}"
    return f"in {likely}" if likely == last else f"in {likely}-{last}"
