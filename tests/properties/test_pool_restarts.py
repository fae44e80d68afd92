"""A worker that ends is followed by another: at once where that is rare, and never too often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulease.pool.slot import FREE, LONGEST, MAX_UNREADY, SOON, Restarts

lives = st.lists(st.one_of(st.none(), st.floats(min_value=0, max_value=100)))


def after(ends: list[float | None]) -> Restarts:
    restarts = Restarts()
    for ready_for in ends:
        restarts = restarts.ended(ready_for)
    return restarts


@given(lives)
def test_a_pause_is_bounded_and_never_shrinks_while_workers_end_soon(ends: list[float | None]) -> None:
    before = after(ends)
    assert 0 <= before.pause <= before.ended(SOON).pause <= LONGEST


@given(lives, st.floats(min_value=SOON, max_value=100, exclude_min=True))
def test_one_that_worked_for_a_while_is_followed_at_once(ends: list[float | None], ready_for: float) -> None:
    assert after([*ends, ready_for]) == Restarts()


@given(lives)
def test_what_one_item_may_end_costs_no_pause(ends: list[float | None]) -> None:
    assert after([*ends, SOON + 1, *[0.0] * FREE]).pause == 0
    assert after([*ends, SOON + 1, *[0.0] * (FREE + 1)]).pause > 0


def test_the_starts_of_a_worker_that_always_ends_at_once_are_few() -> None:
    """In an hour, by the pauses alone."""
    restarts, passed, starts = Restarts(), 0.0, 0
    while passed < 3600:
        restarts = restarts.ended(0.0)
        passed += restarts.pause
        starts += 1
    assert starts < 140


@given(lives)
def test_it_is_hopeless_when_the_last_ones_were_never_ready(ends: list[float | None]) -> None:
    assert after([*ends, *[None] * MAX_UNREADY]).hopeless
    assert not after([*ends, 0.0, *[None] * (MAX_UNREADY - 1)]).hopeless
