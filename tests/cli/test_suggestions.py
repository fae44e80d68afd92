"""What people type by habit is answered with what it is called here."""

from __future__ import annotations

import re
import subprocess

import pytest

from gpulease.cli.argument_parser import HABITS, OPTIONS, TOPICS, make_parser
from gpulease.cli.commands import help
from gpulease.cli.main import ALIASES, HEADINGS, VERBS, main
from gpulease.cli.options import export_lines

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


HINTED = [
    (["docker", "run", "x"], "$(gpulease docker-args)"),
    (["--get"], "Did you mean `gpulease get`?"),
    (["get", "2"], "Did you mean -n 2?"),
    (["stop", "12"], "`gpulease kill 12`"),
    (["add", "--wrap", "x"], "Did you mean --shell?"),
    (["add", "-d", "afterok:12", "--", "true"], "--after 12"),
    (["ls", "-u", "ada"], "Did you mean --user?"),
    (["ls", "-t", "PD"], "Did you mean --state?"),
    (["kill", "-u", "ada"], "Did you mean --user?"),
    (["ls", "--state", "PD"], "Did you mean waiting?"),
    (["kill", "--state", "queued"], "Did you mean waiting?"),
    (["kill", "-9", "12"], "It sends TERM, and KILL after `grace`"),
]


@pytest.mark.parametrize(("words", "hint"), HINTED)
def test_words_of_other_tools_are_answered_with_what_to_type(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert hint in capsys.readouterr().err


def test_help_finds_the_page_about_another_tools_word(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in ("docker", "podman", "apptainer", "notebook", "gpuget", "gpulimit", "safe-gpu", "slurm", "pack"):
        assert main(["help", typed]) == 0, typed
    assert "# Docker, Podman, Apptainer" in capsys.readouterr().out
    assert all(help.find(page) for page in TOPICS.values())
    assert not set(TOPICS) & {*VERBS, *ALIASES}


@pytest.mark.parametrize(("words", "meant"), WRONG)
def test_an_option_that_is_not_there_names_the_one_that_is_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_an_option_like_none_is_refused_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--frobnicate", "--", "true"]) == 2
    reply = capsys.readouterr().err
    assert "There is no option --frobnicate." in reply
    assert "mean" not in reply


def test_what_is_suggested_is_there() -> None:
    there = {option for verb in VERBS for option in make_parser(verb)._option_string_actions}
    assert {option for options in OPTIONS.values() for option in options} <= there


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("queue", "ls"), ("ps", "ls"), ("squeue", "ls"), ("cancel", "kill"), ("scancel", "kill"), ("kill-job", "kill"),
        ("htop", "top"), ("nvidia-smi", "status"), ("sinfo", "status"), ("sbatch", "add"), ("srun", "run"),
        ("logs", "log"), ("relese", "release"), ("explian", "explain"), ("submt", "submit"), ("sh", "run -- sh"),
    ],
)  # fmt: skip
def test_a_verb_of_another_tool_is_answered_with_ours(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed]) == 2
    assert f"`gpulease {meant}" in capsys.readouterr().err


def test_help_for_a_verb_of_another_tool_does_not_mislead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "htop"]) == 1
    reply = capsys.readouterr().err
    assert "`gpulease top`" in reply
    assert "stop" not in reply


def test_habits_name_verbs_that_are_there_and_none_that_is_a_verb() -> None:
    named = {verb for text in HABITS.values() for verb in re.findall(r"`gpulease ([a-z]+)", text)}
    assert named <= set(VERBS)
    assert not set(HABITS) & {*VERBS, *ALIASES}


def test_the_list_of_verbs_is_in_groups_and_fits_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    reply = capsys.readouterr().out
    assert max(map(len, reply.splitlines())) <= 80
    assert all(f"\n{heading}:\n  {verb} " in reply for verb, heading in HEADINGS.items())
    assert all(reply.count(f"\n  {verb:<11} ") == 1 for verb in VERBS)
    assert next(iter(VERBS)) in HEADINGS


def test_the_usage_of_edit_has_its_command() -> None:
    assert "[-- CMD …]" in make_parser("edit").format_usage()


@pytest.mark.parametrize("value", ["GPU-1,GPU-2", "", "x; echo oh", "it's $HOME `id`", "two\nlines"])
def test_a_shell_reads_what_is_exported_as_it_was(value: str) -> None:
    script = 'eval "$1"; printf %s "$VALUE"'
    done = subprocess.run(["sh", "-c", script, "sh", export_lines({"VALUE": value})], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (value, "")
