"""What people type by habit is answered with what it is called here."""

from __future__ import annotations

import pytest

from gpulease.cli.main import VERBS, main
from gpulease.cli.suggestions import OPTIONS

WRONG = [
    (["run", "--name", "A100", "--", "true"], "--model"),
    (["get", "--name=A100"], "--model"),
    (["shell", "--name", "A100"], "--model"),
    (["pool", "start", "p", "--name", "A100"], "--model"),
    (["add", "--name-job", "x", "--", "true"], "--name"),
    (["submit", "--job-name", "x", "--", "true"], "--name"),
    (["edit", "3", "--name-job", "x"], "--name"),
    (["run", "--gpu", "2", "--", "true"], "--gpus"),
    (["run", "--prioritty", "2", "--", "true"], "--priority"),
    (["add", "--time", "2h", "--", "true"], "--time-limit"),
    (["run", "--time", "2h", "--", "true"], "--for"),
    (["ls", "--jsn"], "--json"),
]


@pytest.mark.parametrize(("words", "meant"), WRONG)
def test_an_option_that_is_not_there_names_the_one_that_is_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_an_option_like_none_is_refused_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--frobnicate", "--", "true"]) == 2
    told = capsys.readouterr().err
    assert "There is no option --frobnicate." in told
    assert "mean" not in told


def test_what_is_suggested_is_there() -> None:
    from gpulease.cli.argument_parser import make_parser

    there = {option for verb in VERBS for option in make_parser(verb)._option_string_actions}
    assert {option for options in OPTIONS.values() for option in options} <= there
