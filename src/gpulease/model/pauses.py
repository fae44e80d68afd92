"""PURE: pauses between attempts that go wrong."""

from __future__ import annotations


def pause_after(failures: int, first: float, longest: float) -> float:
    """Seconds before the next attempt, after so many failures in a row: each time twice as long."""
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), 60))
