"""What the bar of a pool says of rate, failures, stored results and the time that is left."""

from __future__ import annotations

from collections import Counter

import pytest

from gpulease.pool.progress import DONE, DROPPED, FAILED, STORED, summary


@pytest.mark.parametrize(
    ("ends", "total", "is_open", "expected"),
    [
        ({}, 6, True, "0.0/s"),
        ({DONE: 4}, 8, True, "2.0/s 0:00:02 left"),
        ({DONE: 3, FAILED: 1}, 8, True, "2.0/s [red]1 failed[/red] 0:00:02 left"),
        ({DONE: 4, STORED: 96}, 104, True, "2.0/s 96 stored 0:00:02 left"),  # else it would be 50.0/s
        ({STORED: 5}, 8, True, "0.0/s 5 stored"),
        ({DONE: 1, STORED: 0}, 7201, True, "0.5/s 4:00:00 left"),
        ({DONE: 4, DROPPED: 2}, 6, False, "2.0/s 2 not done"),  # Ctrl-C
        ({DONE: 6}, 6, False, "3.0/s"),
        ({DONE: 6}, None, True, "3.0/s"),
    ],
)
def test_the_bar_says(ends: dict[str, int], total: int | None, is_open: bool, expected: str) -> None:
    assert summary(Counter(ends), total, 2.0, is_open) == expected
