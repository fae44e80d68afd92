"""Imports point downwards, wherever they stand; and what decides imports nothing that could act.

The layers, from the top: faces, verbs, granting and reaching, keeping and seeing, deciding (tools/import_graph.py).
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from import_graph import LAYERS, PAGE, SOURCE, Import, height, imported_by, imports, known_parts, page, parsed  # noqa: E402

# Downwards, and yet not to be: the broker's insides are its own, and it waits for nobody who asks it.
APART = {
    *((part, "broker") for part in (*LAYERS["verbs"], "client", "thread_client")),
    ("broker", "client"),
    ("broker", "thread_client"),
}
# To be emptied. Nothing may be added.
KNOWN: set[Import] = set()
# Names of another file that begin with an underscore, with the same rule.
KNOWN_PRIVATE: set[tuple[str, str]] = set()
OF_TUPLES = ("_asdict", "_fields", "_field_defaults", "_make", "_replace")
# What computes and nothing more; `sys` serves the command that draws the lifecycle.
COMPUTES = {
    "__future__",
    "abc",
    "bisect",
    "collections",
    "decimal",
    "enum",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",  # a generator is an argument
    "re",
    "sys",
    "typing",
}
ALSO = {"quantities.py": {"time"}, "job_words.py": {"signal"}}  # the time zone, and names; the present is an argument


def test_every_part_has_a_layer() -> None:
    assert known_parts() - {"__init__"} == {part for parts in LAYERS.values() for part in parts}


def test_imports_point_downwards() -> None:
    upwards = {one for one in imports() if height(one.target) > height(one.source)}
    apart = {one for one in imports() if (one.source, one.target) in APART}
    assert upwards | apart == KNOWN, "what is no longer wrong leaves the list"


def test_no_file_uses_private_names_of_another() -> None:
    used = {(str(file.relative_to(SOURCE)), name) for file in SOURCE.rglob("*.py") for name in _private_names(file)}
    assert used == KNOWN_PRIVATE, "what is no longer wrong leaves the list"


def _private_names(file: Path) -> set[str]:
    """As `from gpulease.leases import _bytes`, and as `leases._bytes` of an imported module."""
    nodes = parsed(file)
    origins: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpulease"):
            origins |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    used = set(origins.values())
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in origins:
            used.add(f"{origins[node.value.id]}.{node.attr}")
    last = {name: name.rpartition(".")[2] for name in used}
    return {name for name, part in last.items() if part[:1] == "_" and part[:2] != "__" and part not in OF_TUPLES}


def _deciding() -> list[Path]:
    parts = LAYERS["deciding"]
    return [
        file
        for part in parts
        for file in (SOURCE / f"{part}.py", *sorted((SOURCE / part).rglob("*.py")))
        if file.exists()
    ]


@pytest.mark.parametrize("file", _deciding(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_what_decides_imports_only_what_computes(file: Path) -> None:
    tops = {name.partition(".")[0] for name in imported_by(file)} - {"gpulease"}
    assert tops - COMPUTES - ALSO.get(file.name, set()) == set()


def test_the_overview_has_the_graph() -> None:
    assert PAGE.read_text() == page(), "run: python tools/import_graph.py --write"
