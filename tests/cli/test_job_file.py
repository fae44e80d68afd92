"""A file of commands: comments, continued lines, and what only a shell would understand."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpulease.cli.job_file import read_commands
from gpulease.errors import UsageError


def read(tmp_path: Path, text: str, shell: bool = False) -> list[tuple[int, list[str]]]:
    file = tmp_path / "jobs.txt"
    file.write_bytes(text.encode())
    commands, numbers = read_commands(str(file), shell)
    return list(zip(numbers, commands, strict=True))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo a # b", ["echo", "a"]),
        ("echo a\t#b 'c", ["echo", "a"]),
        ("echo a#b", ["echo", "a#b"]),
        ("echo 'a # b' # c", ["echo", "a # b"]),
        ('echo "a # b" "\\" #" # c', ["echo", "a # b", '" #']),
        ("echo \\# a\\ #b", ["echo", "#", "a #b"]),
        ("echo ''#a", ["echo", "#a"]),
        ("  echo   a  ", ["echo", "a"]),
        ("echo a\r", ["echo", "a"]),
        ("echo a \\\n  b \\\r\n c # d", ["echo", "a", "b", "c"]),
        ("echo a\\\nb", ["echo", "ab"]),
        ("echo a \\", ["echo", "a"]),
        ("echo a '\\\\'", ["echo", "a", "\\\\"]),
    ],
)
def test_a_line_is_split_as_a_shell_would(tmp_path: Path, line: str, words: list[str]) -> None:
    assert read(tmp_path, line) == [(1, words)]


def test_comments_and_empty_lines_are_no_commands_and_numbers_are_the_file_s(tmp_path: Path) -> None:
    text = "# a \\\n\n   # b\necho 1 \\\n2\n\t\necho 3 # c \\\necho 4\n"
    assert read(tmp_path, text) == [(4, ["echo", "1", "2"]), (7, ["echo", "3"]), (8, ["echo", "4"])]


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        ("echo a > b", ">"),
        ("echo a >> b", ">>"),
        ("cat < b", "<"),
        ("echo a && echo b", "&&"),
        ("echo a || echo b", "||"),
        ("echo a | cat", "|"),
        ("echo a; echo b", ";"),
        ("sleep 1 &", "&"),
        ("echo $HOME", "$"),
        ("echo ${HOME}x", "$"),
        ('echo "$HOME"', "$"),
        ('echo "`id`"', "`"),
        ("echo $(id)", "$"),
        ("echo `id`", "`"),
        ("echo *.csv", "*"),
        ("ls ~/data", "~"),
    ],
)
def test_what_only_a_shell_understands_is_told(
    tmp_path: Path, line: str, sign: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, f"true\n{line}\n")
    said = capsys.readouterr().err
    assert f"line 2 of {tmp_path}/jobs.txt has {sign} " in said
    assert "--shell" in said
    assert read(tmp_path, f"true\n{line}\n", shell=True) == [(1, ["sh", "-c", "true"]), (2, ["sh", "-c", line])]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    [
        "echo 'a > b; c' \"d && e\" \\$HOME \\*",
        'sh -c "echo $HOME > b" # > c',
        'echo "\\$HOME" a$ 5$',
        "python train.py lr=[1,2] http://host/?a=1 x~1 (a) {b}",
    ],
)
def test_what_is_quoted_or_means_nothing_to_a_shell_is_not_told(
    tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path, line)
    assert capsys.readouterr().err == ""


def test_all_lines_with_such_signs_are_told_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    read(tmp_path, "echo > a\necho > b\ntrue\necho | cat\n")
    assert "lines 1-2,4 of " in (said := capsys.readouterr().err)
    assert "have > | in" in said


def test_the_standard_input_is_read_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("echo a # b\n# c\n"))
    assert read_commands("-", False) == ([["echo", "a"]], [1])


@pytest.mark.parametrize("text", ["", "# a\n\n", "echo 'a\n", 'true\necho "\n'])
def test_what_has_no_command_or_no_end_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"no command|not a command"):
        read(tmp_path, text)
