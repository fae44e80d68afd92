"""Errors are read on a terminal and in a traceback of Python: what both may show names no options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import gpulease
from gpulease import errors

SOURCE = Path(gpulease.__file__).parent
OF_COMMANDS = ("cli/", "web/", "compat/", "broker/launcher/", "broker/__main__")  # raise what only commands show
COMMAND = re.compile(r"`[^`]*`")
OPTION = re.compile(r"(?<!\S)\(?--[a-z]")


def test_errors_for_all_name_no_options() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {text}"
        for file in SOURCE.rglob("*.py")
        if not str(file.relative_to(SOURCE)).startswith(OF_COMMANDS)
        for line, text in _texts(ast.parse(file.read_text()))
        if OPTION.search(COMMAND.sub("", text))
    ]
    assert found == [], "name what the option stands for; whole commands stand in backticks"


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts with which errors are made."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and hasattr(errors, node.func.id):
            for part in node.args:
                whole = [one for one in ast.walk(part) if isinstance(one, ast.JoinedStr)]
                pieces = {id(piece) for one in whole for piece in one.values}
                alone = (one for one in ast.walk(part) if isinstance(one, ast.Constant) and id(one) not in pieces)
                for text in [*map(ast.unparse, whole), *(str(one.value) for one in alone)]:
                    yield node.lineno, text


def test_an_error_as_text_says_what_happened_and_what_to_do() -> None:
    assert str(errors.UsageError("The number of GPUs is 0.", "Ask for 1 or more.")) == (
        "The number of GPUs is 0. Ask for 1 or more."
    )


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
