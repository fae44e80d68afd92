"""Ids and ranges as they are typed, and as they are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import UsageError
from gpulease.model.job_selection import ranges as shown_ranges
from gpulease.model.job_selection import selection

ranges = st.tuples(st.integers(0, 10**6), st.integers(0, 1000)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def chosen(*words: str, label: str | None = None, state: str | None = None, required: bool = True) -> dict[str, object]:
    return selection(words, label, state, required=required)


@given(st.lists(ranges, min_size=1, max_size=8), st.booleans())
def test_what_is_typed_is_what_is_chosen(pairs: list[tuple[int, int]], apart: bool) -> None:
    words = [str(first) if first == last else f"{first}-{last}" for first, last in pairs]
    assert chosen(*(words if apart else [",".join(words)])) == {"ids": pairs}


@given(st.sets(st.integers(0, 300)))
def test_what_is_shown_can_be_typed_and_is_the_same(ids: set[int]) -> None:
    shown = shown_ranges(ids)
    if not ids:
        assert shown == ""
        return
    found = chosen(shown)["ids"]
    assert isinstance(found, list)
    assert {id for first, last in found for id in range(first, last + 1)} == ids
    assert len(found) == sum(id - 1 not in ids for id in ids)


@given(st.text(max_size=20))
def test_anything_else_is_a_usage_error_or_a_choice(text: str) -> None:
    try:
        found = chosen(text)
    except UsageError:
        return
    assert set(found) <= {"ids", "all", "last"}


def test_words_and_filters() -> None:
    assert chosen("all") == {"all": True}
    assert chosen("last") == {"last": True}
    assert chosen(label="x") == {"label": "x"}
    assert chosen("3", state="failed") == {"ids": [(3, 3)], "state": "failed"}
    assert chosen("J3") == {"ids": [(3, 3)]}
    assert chosen(required=False) == {}
    for wrong in ([], ["²"], ["5-3"], ["-3"], ["1-2-3"], ["all", "3"], ["9" * 50]):
        with pytest.raises(UsageError):
            chosen(*wrong)
