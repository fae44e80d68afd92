"""A sweep is the product of its values, in order, each in its place."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.cli.sweeps import sweep, sweep_all
from gpulease.errors import UsageError

names = st.sampled_from(["lr", "seed", "batch", "x_1"])
values = st.lists(st.text("abcXYZ019._-", min_size=1, max_size=6), min_size=1, max_size=4)
sweeps = st.dictionaries(names, values, min_size=1, max_size=4)


@given(sweeps)
def test_there_is_a_command_for_each_combination(chosen: dict[str, list[str]]) -> None:
    options = [f"{name}={','.join(found)}" for name, found in chosen.items()]
    command = ["run", *(f"--{name}={{{name}}}" for name in chosen)]
    made = sweep(command, options)
    assert len(made) == prod(len(found) for found in chosen.values())
    for words in made:
        for word, (name, found) in zip(words[1:], chosen.items(), strict=True):
            assert word.removeprefix(f"--{name}=") in found
    assert made[0][1:] == [f"--{name}={found[0]}" for name, found in chosen.items()]


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(-7, 7))
def test_a_range_counts_from_the_first_to_the_last(first: int, last: int, step: int) -> None:
    expected = list(range(first, last + (step > 0) - (step < 0), step)) if step else []
    if not expected:
        with pytest.raises(UsageError):
            sweep(["{n}"], [f"n={first}:{last}:{step}"])
        return
    assert [int(words[0]) for words in sweep(["{n}"], [f"n={first}:{last}:{step}"])] == expected


@given(st.text(max_size=12))
def test_anything_else_is_a_usage_error_or_a_sweep(text: str) -> None:
    try:
        made = sweep(["echo", "{a}"], [text])
    except UsageError:
        return
    assert text.startswith("a=")
    assert all(words[0] == "echo" for words in made)


@pytest.mark.parametrize("option", ["n=1:99999999999", "n=", "=1", "n", "1n=2", "n=1:5:0"])
def test_what_makes_no_sense_is_refused(option: str) -> None:
    with pytest.raises(UsageError):
        sweep(["{n}"], [option])


@pytest.mark.parametrize("value", ["--5:3", "²:3", "a:b", "10.0.0.1:80", "1:2:3:4"])
def test_what_only_looks_like_a_range_is_a_value(value: str) -> None:
    assert sweep(["{n}"], [f"n={value}"]) == [[value]]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("5:1", "write 5:1:-1"),
        ("1:5:-1", "write 1:5[.]"),
        ("1:5:-2", "write 1:5:2"),
        ("1:1000000000", "more than 1000000"),
        ("1:1000001", "more than 1000000"),
        ("1:" + "9" * 30, "more than 1000000"),
        ("1:600000,1:600000", "more than 1000000"),
        ("0.1:0.5", "List the values"),
        ("1:1e9", "List the values"),
        ("1:2:.5", "List the values"),
    ],
)
def test_a_range_that_is_none_is_refused_with_the_way_out(values: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sweep(["{n}"], [f"n={values}"])


def test_a_variable_is_swept_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        sweep(["{a}"], ["a=1,2", "a=3"])


def test_a_million_values_are_not_too_many() -> None:
    assert len(sweep(["{a}"], ["a=1:1000000"])) == 1_000_000


def test_texts_are_filled_in_as_the_command_is() -> None:
    made = sweep_all(["{a}"], {"log": "s{a}-{b}.log"}, ["a={b},2"])
    assert made == [(["{b}"], {"log": "s{b}-{b}.log"}), (["2"], {"log": "s2-{b}.log"})]


def test_a_value_is_not_taken_for_another_placeholder() -> None:
    assert sweep(["{a}{b}"], ["a={b}", "b=1"]) == [["{b}1"]]


def test_more_than_a_million_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match="1000000"):
        sweep(["{a}{b}{c}"], ["a=1:1000", "b=1:1000", "c=1:2"])
