"""A sweep is the product of its values, in order, each in its place."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.cli.sweeps import sweep
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
    if step == 0:
        with pytest.raises(UsageError):
            sweep(["{n}"], [f"n={first}:{last}:0"])
        return
    found = [int(words[0]) for words in sweep(["{n}"], [f"n={first}:{last}:{step}"])]
    assert found == list(range(first, last + (step > 0) - (step < 0), step))


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


@pytest.mark.parametrize("value", ["--5:3", "²:3", "1:" + "9" * 30])
def test_what_only_looks_like_a_range_is_a_value(value: str) -> None:
    assert sweep(["{n}"], [f"n={value}"]) == [[value]]


def test_a_value_is_not_taken_for_another_placeholder() -> None:
    assert sweep(["{a}{b}"], ["a={b}", "b=1"]) == [["{b}1"]]


def test_more_than_a_million_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match="1000000"):
        sweep(["{a}{b}{c}"], ["a=1:1000", "b=1:1000", "c=1:2"])
