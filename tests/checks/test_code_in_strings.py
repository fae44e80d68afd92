"""Programs inside strings are code: they parse, and what they use of our own modules is there.

Tests hand them to `python -c` or write them to files. Neither ruff nor mypy looks into a string.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("gpulease", "support")
IMPORTS = re.compile(
    r"(?:^|;)[ \t]*(?:from |import (?:[\w., ]+, ?)?)(?:gpulease|support)\b(?=[ .,;\n]|$)", re.MULTILINE
)
# In the words of a shell: a program between quotation marks after -c, or after a here-document's first line.
OF_A_SHELL = re.compile(
    r"-c (['\"])(?P<quoted>.*?)\1|<<'?(?P<mark>[A-Z]+)'?\n(?P<document>.*?)^(?P=mark)", re.DOTALL | re.M
)
BLANK = re.compile(r"\{\w*(?:!r)?\}")  # of a text for `str.format`
FILES = [path for folder in ("tests", "bench", "tools") for path in sorted((ROOT / folder).rglob("*.py"))]
FILES.remove(Path(__file__))  # where something is wrong on purpose


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """All of them with their lines, but for those that are a part of another; docstrings too, which have examples."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "None" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        else:
            yield from strings(node)


def programs(text: str) -> Iterator[str]:
    """What is Python in a string: all of it, or a part of a shell's words."""
    inside = [found["quoted"] or found["document"] or "" for found in OF_A_SHELL.finditer(text)]
    for part in inside or [text]:
        if IMPORTS.search(part):
            yield dedent(part).strip()


def parsed(program: str) -> ast.Module:
    try:
        return ast.parse(program)
    except SyntaxError:
        return ast.parse(BLANK.sub("None", program).replace("{{", "{").replace("}}", "}"))


def missing(tree: ast.AST) -> list[str]:
    """Names of our modules and classes that a program uses and that are not there."""
    imported = [one for node in ast.walk(tree) for one in _imported(node)]
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    known = {name: value for name, _, value in imported if name not in stored}  # else it may be anything
    wrong = [full for _, full, value in imported if value is None]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(owner := _value(node.value, known), (ModuleType, type)):
            wrong += [] if hasattr(owner, node.attr) else [ast.unparse(node)]
    return wrong


def _imported(node: ast.AST) -> Iterator[tuple[str, str, object]]:
    """The names that a statement binds, their full names, and what they are: `None` for what is not there."""
    if isinstance(node, ast.Import):
        for one in node.names:
            if (first := one.name.partition(".")[0]) in OURS:
                found = _module(one.name)
                yield one.asname or first, one.name, found if one.asname or found is None else _module(first)
    elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
        for one in node.names:
            full = f"{node.module}.{one.name}"
            module = _module(node.module)
            found = getattr(module, one.name) if hasattr(module, one.name) else _module(full)
            yield one.asname or one.name, full, found


def _value(node: ast.expr, known: dict[str, object]) -> object:
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, known), node.attr, None)
    return None


def _module(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def test_programs_in_strings_parse_and_use_what_is_there() -> None:
    wrong, seen = [], 0
    for path in FILES:
        for line, text in strings(ast.parse(path.read_text())):
            for program in programs(text):
                where = f"{path.relative_to(ROOT)}:{line}"
                try:
                    tree = parsed(program)
                except SyntaxError as trouble:
                    wrong.append(f"{where}: {trouble}\n{program}")
                    continue
                seen += 1
                wrong += [f"{where}: {name} is not there" for name in missing(tree)]
    assert not wrong, "\n".join(wrong)
    assert seen > 50, "they are no longer found"


def test_programs_that_no_test_imports_use_what_is_there() -> None:
    """What is for type checkers only is not there when the program runs."""
    wrong = []
    for path in (path for folder in ("bench", "tools", "examples") for path in sorted((ROOT / folder).rglob("*.py"))):
        tree = ast.parse(path.read_text())
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ]
        wrong += [f"{path.relative_to(ROOT)}: {name} is not there" for name in missing(tree)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("from gpulease.client import connection as client\nclient._not_there()", "client._not_there"),
        ("import gpulease.client.connection as c; c.Client.not_there", "c.Client.not_there"),
        ("import gpulease; gpulease.client.connection.not_there", "gpulease.client.connection.not_there"),
        ("from gpulease.client.connection import not_there", "gpulease.client.connection.not_there"),
        ("import gpulease.not_there", "gpulease.not_there"),
        ("python -c 'from gpulease import not_there'", "gpulease.not_there"),
        ("sh <<EOF\nimport gpulease.not_there\nEOF\n", "gpulease.not_there"),
        ("from gpulease.cli.main import not_there\nmain({words!r}, {{1}})", "gpulease.cli.main.not_there"),
    ],
)
def test_what_is_not_there_is_found(program: str, name: str) -> None:
    (inner,) = programs(program)
    assert missing(parsed(inner)) == [name]
