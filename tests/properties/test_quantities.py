"""Amounts are read as people write them, and nothing else is taken for one."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import UsageError
from gpulease.quantities import format_bytes, matching, parse_bytes, parse_seconds


@given(st.integers(0, 2**40), st.sampled_from(["", "K", "M", "g", "GB", "GiB", "t"]))
def test_sizes_are_powers_of_1024(number: int, unit: str) -> None:
    power = " KMGT".index((unit[:1] or " ").upper())
    if number * 1024**power >= 2**63:
        with pytest.raises(UsageError):
            parse_bytes(f"{number}{unit}")
    else:
        assert parse_bytes(f"{number}{unit}") == number * 1024**power


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_times_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_seconds(f"{days}d{hours}h{minutes}m{seconds}s") == total
    assert parse_seconds(str(total)) == total


@given(st.text(max_size=12))
def test_any_text_is_an_amount_or_a_usage_error(text: str) -> None:
    for parse in (parse_bytes, parse_seconds):
        with suppress(UsageError):
            assert parse(text) >= 0


@pytest.mark.parametrize("text", ["", "G", "6X", "-1", "1e9", "inf", "nan", "6 G G", "4h!", "1..5"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bytes(text)
    with pytest.raises(UsageError):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "?"), (0, "0B"), (512 << 20, "512M"), (31 << 30, "31.0G"), (141 << 30, "141G")]
)
def test_short_sizes(value: int | None, text: str) -> None:
    assert format_bytes(value) == text


@given(st.lists(st.text("ab_", max_size=5), max_size=5), st.lists(st.text("AB_*", max_size=5), max_size=4))
def test_names_are_like_a_pattern_as_a_shell_has_it_in_any_case(names: list[str], patterns: list[str]) -> None:
    expected = [name for name in names if any(fnmatchcase(name.upper(), pattern) for pattern in patterns)]
    assert matching(names, patterns) == expected
