"""A sweep is the product of its values, in order, each in its place."""

from __future__ import annotations

from decimal import Decimal
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulease.api.job_commands import swept
from gpulease.errors import UsageError
from gpulease.model.sweeps import expand, texts_of, unfilled, variables

names = st.sampled_from(["lr", "seed", "batch", "x_1"])
texts = st.text("abcXYZ019._-", min_size=1, max_size=6).filter(lambda text: ".." not in text)  # as 1..5: no range
values = st.lists(texts, min_size=1, max_size=4)
sweeps = st.dictionaries(names, values, min_size=1, max_size=4)


def sweep(command: list[str], options: list[str]) -> list[list[str]]:
    return [words for words, _ in expand(command, {}, variables(options))]


def values_of(text: str) -> list[str]:
    return variables([f"n={text}"])["n"]


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


decimals = st.decimals(-50, 50, places=3, allow_nan=False, allow_infinity=False)


@given(decimals, decimals, st.integers(-40, 40).filter(bool), st.integers(0, 3))
def test_a_range_of_decimals_is_exact_and_ends_at_the_last(first: Decimal, last: Decimal, n: int, places: int) -> None:
    step = Decimal(n).scaleb(-places)
    if (last - first) * step < 0:
        last, first = first, last
    found = [Decimal(text) for text in values_of(f"{first}:{last}:{step}")]
    assert found == [first + step * number for number in range(len(found))]
    assert abs(found[-1] - first) <= abs(last - first) < abs(found[-1] + step - first)


@given(st.integers(-12, 3), st.integers(0, 14))
def test_a_range_of_powers_has_each_of_them_exactly(least: int, count: int) -> None:
    found = values_of(f"1e{least}:1e{least + count}:x10")
    assert [Decimal(text) for text in found] == [Decimal(10) ** power for power in range(least, least + count + 1)]
    assert values_of(f"1e{least + count}:1e{least}:x0.1") == found[::-1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1:0.5:0.1", "0.1 0.2 0.3 0.4 0.5"),
        ("0.5:0.1:-0.2", "0.5 0.3 0.1"),
        ("0:1:0.25", "0.00 0.25 0.50 0.75 1.00"),
        ("1:2:.5", "1.0 1.5 2.0"),
        ("0:0.35:0.1", "0.0 0.1 0.2 0.3"),
        ("1e-4:3e-4:1e-4", "0.0001 0.0002 0.0003"),
        ("-0.1:0.1:0.1", "-0.1 0.0 0.1"),
        ("1:3e0", "1 2 3"),
        ("1e-4:1e-1:x10", "0.0001 0.001 0.01 0.1"),
        ("16:128:x2", "16 32 64 128"),
        ("1:0.1:x0.5", "1 0.5 0.25 0.125"),
        ("1:2:x1.1", "1 1.1 1.21 1.331 1.4641 1.61051 1.771561 1.9487171"),
        ("0.1:0.2:0.1,1:2,x", "0.1 0.2 1 2 x"),
    ],
)
def test_ranges_are_written_as_people_would(text: str, expected: str) -> None:
    assert values_of(text) == expected.split()


def test_values_from_python_are_texts_lists_ranges_and_generators() -> None:
    assert texts_of("lr", [0.1, "a", None]) == ["0.1", "a", "None"]
    assert texts_of("lr", range(3)) == texts_of("lr", (n for n in (0, 1, 2))) == ["0", "1", "2"]
    assert texts_of("lr", "1:3,x") == ["1", "2", "3", "x"]
    refused: list[object] = [5, 0.1, None, "", [], b"ab"]
    for wrong in refused:
        with pytest.raises(UsageError, match="lr"):
            texts_of("lr", wrong)


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


@pytest.mark.parametrize("value", ["--5:3", "²:3", "a:b", "10.0.0.1:80", "1:2:3:4", "nan", "inf", "../data", "a:inf"])
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
        ("0.1:0.5", "0.1:0.5:0.1 to add"),
        ("0.5:0.1", "0.5:0.1:-0.1 to add -0.1, or 0.5:0.1:x0.1 to multiply"),
        ("-0.5:1", "-0.5:1:0.1 to add 0.1[.]"),
        ("0.1..0.5", "with colons"),
        ("1..5..2", "with colons"),
        ("nan:1:0.1", "has nan in it"),
        ("0.1:Inf:x10", "has Inf in it"),
        ("1:2.5", "has no step"),
        ("1:1e9", "more than 1000000"),
        ("1:1e999", "too long"),
        ("0.5:0.1:0.1", "write 0.5:0.1:-0.1"),
        ("1:64:x1", "reaches no end"),
        ("1:64:x-2", "reaches no end"),
        ("0:64:x2", "reaches no end"),
        ("-1:64:x2", "reaches no end"),
        ("64:1:x2", "is empty"),
        ("1:1e50:x1.000001", "more than 1000000"),
    ],
)
def test_a_range_that_is_none_is_refused_with_the_way_out(values: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sweep(["{n}"], [f"n={values}"])


def test_a_variable_is_swept_once() -> None:
    with pytest.raises(UsageError, match="twice"):
        sweep(["{a}"], ["a=1,2", "a=3"])


def test_a_million_values_are_not_too_many() -> None:
    assert len(values_of("1:1000000")) == 1_000_000


@pytest.mark.long("properties")
def test_a_million_combinations_are_not_too_many() -> None:
    assert len(sweep(["{a}"], ["a=1:1000000"])) == 1_000_000


def test_texts_are_filled_in_as_the_command_is() -> None:
    made = expand(["{a}"], {"log": "s{a}-{b}.log"}, variables(["a={b},2"]))
    assert made == [(["{b}"], {"log": "s{b}-{b}.log"}), (["2"], {"log": "s2-{b}.log"})]


def test_a_value_is_not_taken_for_another_placeholder() -> None:
    assert sweep(["{a}{b}"], ["a={b}", "b=1"]) == [["{b}1"]]


def test_more_than_a_million_are_refused_before_they_are_made() -> None:
    with pytest.raises(UsageError, match="1000000"):
        sweep(["{a}{b}{c}"], ["a=1:1000", "b=1:1000", "c=1:2"])


def test_a_placeholder_without_values_is_refused_unless_by_force() -> None:
    assert unfilled(["--lr={lr}", "{seed}"], ["seed"]) == "lr"
    assert unfilled(["${lr}", "{}", "{print $1}", "{1}", "{seed}"], ["seed"]) is None
    with pytest.raises(UsageError, match=r"\{lr\} in it"):
        swept(["{lr}", "{seed}"], {}, {"seed": ["1"]})
    assert swept(["{lr}", "{seed}"], {}, {"seed": ["1"]}, force=True)[0] == [["{lr}", "1"]]
