"""What a worker may be given: never less than nothing, never without bound, and all of it again once it is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.pool.items import AHEAD, DEEPEST, Window, learn, most_tries, share

seconds = st.one_of(st.none(), st.floats(min_value=0, max_value=1000))
deepest = st.integers(min_value=1, max_value=200)
moves = st.lists(st.tuples(st.sampled_from(["give", "finish", "take back", "skip"]), st.integers(0, 200), seconds))


def play(window: Window, steps: list[tuple[str, int, float | None]]) -> list[Window]:
    """Every window on the way, as an engine would move: no more than there is room for, or than is there."""
    seen = [window]
    for move, amount, each in steps:
        if move == "give":
            window = window.given(min(amount, window.room(each)))
        elif move == "finish" and window.in_flight:
            window = window.finished()
        elif move == "take back":
            window = window.taken_back(min(amount, window.in_flight))
        elif move == "skip" and window.skipping:
            window = window.skipped()
        seen.append(window)
    return seen


def emptied(window: Window) -> Window:
    """After its worker has read all that it was sent."""
    while window.in_flight:
        window = window.finished()
    while window.skipping:
        window = window.skipped()
    return window


@given(deepest, moves)
def test_it_is_never_negative_and_bounded(most: int, steps: list[tuple[str, int, float | None]]) -> None:
    for window in play(Window(deepest=most), steps):
        assert window.in_flight >= 0
        assert window.skipping >= 0
        assert window.in_flight + window.skipping <= most


@given(deepest, moves, seconds)
def test_once_it_is_empty_there_is_all_the_room_again(
    most: int, steps: list[tuple[str, int, float | None]], each: float | None
) -> None:
    """Whatever was given, finished and taken back before: no link goes dead."""
    window = emptied(play(Window(deepest=most), steps)[-1])
    assert window == Window(deepest=most)
    assert window.room(each) == window.depth(each) >= 1


@given(deepest, moves, st.integers(0, 200), seconds)
def test_what_is_taken_back_is_room_again_once_it_was_skipped(
    most: int, steps: list[tuple[str, int, float | None]], amount: int, each: float | None
) -> None:
    before = emptied(play(Window(deepest=most), steps)[-1])
    given = min(amount, before.room(each))
    after = before.given(given).taken_back(given)
    assert given == 0 or after.room(each) == 0  # its worker has still to read them
    for _ in range(given):
        after = after.skipped()
    assert after == before


@given(deepest, moves, seconds)
def test_room_never_exceeds_what_the_function_allows(
    most: int, steps: list[tuple[str, int, float | None]], each: float | None
) -> None:
    for window in play(Window(deepest=most), steps):
        room = window.room(each)
        assert 0 <= room <= window.depth(each) <= most
        assert room == 0 or window.in_flight + room == window.depth(each)


@given(seconds)
def test_calls_that_take_long_go_one_at_a_time(each: float | None) -> None:
    depth = Window().depth(each)
    assert 1 <= depth <= DEEPEST
    if each is None or each > AHEAD / 2:
        assert depth == 1


@pytest.mark.parametrize("change", [Window.finished, Window.skipped, lambda window: window.taken_back(1)])
def test_what_cannot_happen_raises(change: object) -> None:
    with pytest.raises(ValueError, match="cannot become"):
        change(Window())  # type: ignore[operator]


@given(st.integers(0, 10_000), st.integers(0, 1000))
def test_the_shares_of_all_workers_are_the_whole_queue(queued: int, workers: int) -> None:
    assert share(queued, workers) * max(workers, 1) >= queued
    assert share(queued, workers) <= queued


@given(st.floats(1e-6, 100), st.floats(1e-6, 100))
def test_an_average_lies_between_what_was_known_and_what_was_measured(known: float, measured: float) -> None:
    assert learn(None, measured) == measured
    assert min(known, measured) * 0.999 <= learn(known, measured) <= max(known, measured) * 1.001


def test_tries_follow_from_retries() -> None:
    assert [most_tries(retries) for retries in range(4)] == [1, 3, 4, 5]
