"""Errors as text speak of Python's arguments; options are for the command line."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gpulease
from gpulease.errors import NotGranted, UsageError
from gpulease.python_words import in_python

SOURCE = Path(gpulease.__file__).parent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Wait longer with --wait, or ask for less.", "Wait longer with wait=, or ask for less."),
        ("Write it as --mem 6G.", "Write it as mem='6G'."),
        ("Leave out --mem or --gpus.", "Leave out mem= or gpus=."),
        ("Write ids, as --after 3,4.", "Write ids, as after=[3, 4]."),
        ("Ask with --priority 3.", "Ask with priority=3."),
        ("Write it as --for 4h; --force queues it.", "Write it as duration='4h'; force=True queues it."),
        ("(--min-memory excluded 0)", "(min_memory= excluded 0)"),
        ("leave that rule out with `any`, as --util any.", "leave that rule out with None, as util=None."),
        ("See `gpulease ls --all`.", "See `gpulease ls --all`."),
        ("The command 'python a --lr 3' is not there.", "The command 'python a --lr 3' is not there."),
        ("It's the device's --note, a--b", "It's the device's note=, a--b"),
        ("Write it behind `--`.", "Write it behind `--`."),
    ],
)
def test_options_become_arguments(text: str, expected: str) -> None:
    assert in_python(text) == expected


def test_an_error_has_both_forms() -> None:
    error = UsageError("--gpus is 0.", "Give --gpus 1 or more.")
    assert (error.what, error.next_step) == ("--gpus is 0.", "Give --gpus 1 or more.")
    assert str(error) == "gpus= is 0. Give gpus=1 or more."
    assert "--" not in str(NotGranted("Not granted."))


def test_docstrings_of_public_names_point_to_what_pip_installs() -> None:
    """A page is read with `gpulease help TOPIC`; the folder of pages is the repository's."""
    for file in [
        SOURCE / "__init__.py",
        *(SOURCE / f"{home.removeprefix('gpulease.').replace('.', '/')}.py" for home in homes()),
    ]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                assert not re.search(r"\bdocs/", ast.get_docstring(node) or ""), (file, node)


def homes() -> set[str]:
    return set(vars(gpulease)["_HOMES"].values())
