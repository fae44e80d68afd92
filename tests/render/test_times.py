"""A date says its year where that is not plain."""

from __future__ import annotations

import time

import pytest

from gpulease.render.times import clock, stamp, start_in


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


@pytest.mark.parametrize(
    ("moment", "now", "shown"),
    [
        ("2026-11-17 08:30", "2026-11-17 23:00", "08:30"),
        ("2026-11-16 08:30", "2026-11-17 09:00", "11-16 08:30"),
        ("2026-01-02 08:30", "2026-11-17 09:00", "01-02 08:30"),
        ("2025-12-30 08:30", "2026-01-03 09:00", "12-30 08:30"),
        ("2025-11-17 08:30", "2026-11-17 09:00", "2025-11-17 08:30"),
        ("2027-03-01 08:30", "2026-11-17 09:00", "2027-03-01 08:30"),
    ],
)
def test_a_moment_in_a_table_has_what_it_needs(moment: str, now: str, shown: str) -> None:
    assert clock(at(moment), at(now)) == shown
    assert clock(at(moment), at(now), seconds=True) == f"{shown}:00"
    assert stamp(at(moment)) == f"{moment}:00"


def test_a_start_is_told_roughly_or_not_at_all() -> None:
    assert start_in(1600.0, 8200.0, 1000.0) == "in 10min-2h"
    assert start_in(900.0, 8200.0, 1000.0) == "within 2h"
    assert [start_in(moment, None, 1000.0) for moment in (None, 900.0, 1030.0, 1600.0, 1e6)] == [
        "",
        "soon",
        "in 30s",
        "in 10min",
        "in 12d",
    ]
