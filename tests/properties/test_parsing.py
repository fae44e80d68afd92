"""Words that are parsed without argparse mean what they mean to argparse."""

from __future__ import annotations

import argparse
import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulease.cli.argument_parser import make_parser
from gpulease.cli.main import VERBS, load
from gpulease.cli.parsing import REMAINDER, Irregular, Options, quick_parse

LOOSE = ["0", "3,5-9", "all", "last", "", "x", "-3", "-", "1h", "running", "random", "a b"]
OWN_PARSERS = ("broker", "install", "pool", "uninstall")  # verbs of verbs, and options that exclude each other


def options_of(verb: str) -> Options:
    options = Options()
    load(verb).configure(options)
    return options


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in OWN_PARSERS])
def test_what_is_parsed_quickly_is_what_argparse_says(verb: str, data: st.DataObject) -> None:
    options = options_of(verb)
    flags = [*options.flags, *(f"{flag}=7" for flag in options.flags), "--no-such", "-n2"]
    word = st.sampled_from(LOOSE) | st.sampled_from(flags)
    words = data.draw(st.lists(word, max_size=6))
    try:
        quick = quick_parse(options, words)
    except Irregular:
        return
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            full = vars(make_parser(verb).parse_args(words))
        except SystemExit:
            raise AssertionError(f"argparse refuses {words}: {said.getvalue()}") from None
    assert quick == full


@pytest.mark.parametrize("verb", OWN_PARSERS)
def test_verbs_of_verbs_are_left_to_argparse(verb: str) -> None:
    with pytest.raises(Irregular):
        options_of(verb)


@pytest.mark.parametrize(
    "words",
    [
        "get",
        "get -n 2 --for 1h",
        "release 0 -q",
        "run --mem=6G -- true",
        "ls --all",
        "status --json",
        "add -p 1",
    ],
)
def test_what_people_type_needs_no_argparse(words: str) -> None:
    verb, *rest = words.split(" -- ")[0].split()
    quick_parse(options_of(verb), rest)


def test_the_word_for_the_rest_is_argparses() -> None:
    assert REMAINDER == argparse.REMAINDER
