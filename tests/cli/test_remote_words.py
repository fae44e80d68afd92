"""The words that say where a command is done are taken out, and nothing of a job's own command is."""

from __future__ import annotations

import pytest

from gpulease.cli.main import VERBS, load
from gpulease.cli.remote import OF_IDS, by_host, flags_of, is_host, take_apart
from gpulease.errors import UsageError


def apart(verb: str, text: str) -> tuple[dict[str, str], list[str], list[str], list[str]]:
    flags, has_command = flags_of(load(verb).configure)
    found = take_apart(text.split(), flags, verb, has_command)
    return found.where, found.options, found.loose, found.command


def test_a_host_may_stand_among_the_options() -> None:
    where, options, _, command = apart("run", "-n 2 --host gpu3 --model A100 -- train")
    assert (where, options, command) == ({"--host": "gpu3"}, ["-n", "2", "--model", "A100"], ["--", "train"])


@pytest.mark.parametrize("text", ["serve.py --host 0.0.0.0", "-n 2 serve.py --host=x", "-- serve --engine v8"])
def test_an_option_of_the_command_is_the_commands(text: str) -> None:
    assert apart("run", text)[0] == {}
    assert apart("add", text)[0] == {}


def test_the_value_of_an_option_is_no_id_and_no_place() -> None:
    where, options, loose, _ = apart("ls", "--label --host 3")
    assert (where, options, loose) == ({}, ["--label", "--host"], ["3"])


@pytest.mark.parametrize("text", ["--host", "--host= ls", "--engine -n"])
def test_a_place_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        apart("status", text)


def test_ids_have_their_host_before_them() -> None:
    assert by_host(["gpu1:3,gpu2:5-9", "7"]) == {"gpu1": ["3"], "gpu2": ["5-9"], None: ["7"]}
    assert by_host(["gpu1:3,5-9"]) == {"gpu1": ["3,5-9"]}
    assert by_host(["ada@gpu-3.lab:L7"]) == {"ada@gpu-3.lab": ["L7"]}


@pytest.mark.parametrize("word", ["0:1", "all", "3,5-9", ":3", "a b:3", "-x:3"])
def test_a_mig_instance_or_a_range_is_of_this_machine(word: str) -> None:
    assert list(by_host([word])) == [None]


def test_a_name_that_ssh_would_take_for_an_option_is_no_host() -> None:
    assert not is_host("-oProxyCommand=x")


def test_every_verb_about_ids_is_a_verb() -> None:
    assert set(OF_IDS) <= set(VERBS)
