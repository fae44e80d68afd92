"""The pure part of the house imports the pure standard library and itself, nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "gpulease"
PURE = ("planner", "lifecycle", "model", "messages")
WORDS = ("errors", "PROTOCOL")  # names without a behaviour of their own
# What computes and nothing more; `sys` serves the command that draws the lifecycle.
ALLOWED = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "re",
    "sys",
    "typing",
}


def _files() -> list[Path]:
    files: list[Path] = []
    for name in PURE:
        files += [SOURCE / f"{name}.py"] if (SOURCE / f"{name}.py").exists() else []
        files += sorted((SOURCE / name).rglob("*.py"))
    return files


def _imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} imports relatively"
            module = node.module or ""
            inner = {f"{module}.{alias.name}" for alias in node.names}
            names |= inner if module == "gpulease" else {module}
    return names


def _pure(name: str) -> bool:
    top, _, rest = name.partition(".")
    return rest.split(".")[0] in (*PURE, *WORDS) if top == "gpulease" else top in ALLOWED


@pytest.mark.parametrize("file", _files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_pure_modules_import_only_pure_ones(file: Path) -> None:
    assert [name for name in sorted(_imported(file)) if not _pure(name)] == []
