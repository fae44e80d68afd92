"""The drop-ins are for Python 3.6 and newer and import nothing but the standard library and each other."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from support.drop_ins import OLDEST

SHIMS = Path(__file__).parents[2] / "src" / "gpulease" / "compat" / "shims"
FILES = sorted(
    path for path in SHIMS.rglob("*") if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".sh"
)
EACH_OTHER = {path.stem for path in (SHIMS / "python").iterdir()}
BACKENDS = {"torch", "tensorflow", "pycuda"}  # imported where a user's own program has them
# What the standard library got after 3.6: the syntax alone does not show it.
NEWER_MODULES = {"dataclasses", "contextvars", "zoneinfo", "graphlib", "tomllib", "importlib.resources"}
NEWER_NAMES = {"capture_output", "removeprefix", "removesuffix", "text", "fromisoformat", "nullcontext", "pidfd_open"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SHIMS)))
def test_each_is_for_old_python(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST)
    nodes = list(ast.walk(tree))
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = {name.partition(".")[0] for name in modules}
    assert tops - set(sys.stdlib_module_names) - EACH_OTHER - BACKENDS == set()
    assert modules & NEWER_MODULES == set()
    names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    names |= {node.arg or "" for node in nodes if isinstance(node, ast.keyword)}
    assert names & NEWER_NAMES == set()
    futures = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert [alias.name for node in futures for alias in node.names if alias.name == "annotations"] == []


def test_commands_find_the_python_of_the_path() -> None:
    commands = [path for path in FILES if path.parent.name == "bin"]
    assert commands
    assert {path.read_text(encoding="utf-8").partition("\n")[0] for path in commands} == {"#!/usr/bin/env python3"}
