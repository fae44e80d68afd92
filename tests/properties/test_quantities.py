"""Amounts are read as people write them, and nothing else is taken for one."""

from __future__ import annotations

from contextlib import suppress
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.errors import UsageError
from gpulease.model.quantities import (
    exact_size,
    exact_time,
    format_bytes,
    matching,
    parse_bytes,
    parse_seconds,
    span_text,
)


@given(st.integers(0, 2**40), st.sampled_from(["B", "K", "M", "g", "GB", "GiB", "t"]))
def test_sizes_are_powers_of_1024(number: int, unit: str) -> None:
    power = "BKMGT".index(unit[:1].upper())
    if number * 1024**power >= 2**63:
        with pytest.raises(UsageError):
            parse_bytes(f"{number}{unit}")
    else:
        assert parse_bytes(f"{number}{unit}") == number * 1024**power


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_times_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    assert parse_seconds(f"{days}d{hours}h{minutes}m{seconds}s") == total
    assert parse_seconds(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == total
    assert parse_seconds(f"{days * 24 + hours}:{minutes}:{seconds}") == total
    assert parse_seconds(str(total)) == total


@given(st.integers(0, 10**8))
def test_what_is_shown_may_be_typed(amount: int) -> None:
    assert parse_seconds(exact_time(amount)) == amount
    assert parse_bytes(exact_size(amount)) == amount
    assert parse_seconds(exact_time(amount / 8)) == amount / 8


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30min", 1800), ("90s", 90), ("1h30m", 5400), ("01:30:00", 5400), ("2d", 172800), ("1-00:00:00", 86400),
        ("1-12", 129600), ("1-12:30", 131400), ("2 hours", 7200), ("1H 30Min", 5400), ("90", 90), ("1.5d", 129600),
    ],
)  # fmt: skip
def test_times_as_people_and_slurm_write_them(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["1:30", "1h30", "1 2", "1-", "-5", "1-00:00:00:00", "4.5:00:00", "3651d"])
def test_a_time_that_may_mean_two_things_is_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["6", "0.5", " 1073741824"])
def test_a_size_without_a_unit_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_bytes(text)
    assert f"as {text.strip()}G" in str(caught.value)
    assert parse_bytes("0") == 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7199.6, "2 h"), (7140, "119 min"), (119.7, "2 min"), (172799, "2 d"), (5, "5 s"), (-1, "0 s")],
)
def test_a_time_to_come_is_in_its_own_unit(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


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
