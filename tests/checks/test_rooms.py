"""Folders are layers: who may import whom, and that what decides can do nothing but compute.

`MAY` is to be read like a firewall: what is not in it is forbidden, wherever the `import` stands.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from house_page import FILES, SOURCE, imported_files, of_package  # noqa: E402

# A room, or a file that is its own room -> rooms and files that it may import beside its own and `errors`.
DECIDING = {"model", "protocol", "planner", "render"}
BELOW = {*DECIDING, "notices", "system", "client", "hosts", "api", "pool"}
MAY: dict[str, set[str]] = {
    "": {"cli"},
    "model": set(),
    "protocol": {"model"},
    "planner": {"model"},
    "render": DECIDING,
    "simulator": {"model"},
    "system": {"model", "simulator"},
    "notices": {"model", "render"},
    "client": {"model", "protocol", "render", "simulator", "system"},
    "broker": {"broker/core/events", "broker/core/instructions", "planner", "protocol", "simulator", "system"},
    "broker/__main__": {"broker", "broker/edge", "broker/store", "protocol", "system"},
    "broker/core": DECIDING,
    "broker/edge": {*DECIDING, "broker", "broker/children", "broker/core", "broker/neighbours", "broker/store",
                    "simulator", "system"},
    "broker/neighbours": {"broker/child", "broker/core/events", "broker/core/instructions", "model", "protocol",
                          "system"},
    "broker/store": {"model", "system"},
    "broker/agent": {"broker", "broker/core/events", "model", "protocol", "system"},
    "broker/launcher": {"broker/home", "system"},
    "broker/children": {"broker/outbox", "model", "notices/channels", "planner/order", "protocol", "simulator",
                        "system"},
    "slurm": {"model", "protocol", "system"},
    "hosts": {"model", "slurm", "system"},
    "api": {"client", "hosts", "model", "notices", "protocol", "render", "simulator", "system"},
    "pool": {"api", "client", "model", "planner", "protocol", "system"},
    "cli": {*BELOW, "cli/commands"},
    "cli/commands": {*BELOW, "broker/__main__", "cli", "cli/install", "compat", "simulator", "slurm", "tui", "web"},
    "cli/commands/doctor": {*BELOW, "broker/__main__", "broker/config", "broker/neighbours/safe_gpu", "cli",
                            "cli/commands", "simulator"},
    "cli/install": {"cli", "cli/commands/completion", "cli/commands/help", "planner", "system"},
    "tui": {"api", "client", "hosts", "model", "render", "system"},
    "web": {"api", "client", "hosts", "model", "render", "system"},
    "compat": {"api", "cli/install/changes", "pool"},
}  # fmt: skip
# To be emptied. Nothing may be added.
KNOWN: set[tuple[str, str]] = set()
PURE = ("model", "protocol", "planner", "render", "broker/core")
# What computes and nothing more, as modules and as names of modules that can do other things too. Of `time` it is the
# zone: the present is an argument, as the generator of random numbers is.
COMPUTES = {
    "__future__", "_json", "abc", "array", "bisect", "collections", "contextlib", "decimal", "difflib", "enum", "errno",
    "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "os.path", "random.Random", "re",
    "shlex.join", "signal", "sys", "time.localtime", "time.mktime", "time.strftime", "time.strptime", "traceback",
    "types", "typing", "unicodedata", "urllib.parse",
}  # fmt: skip
ACTS = {"open", "input", "exec", "eval"}
# To be emptied, too.
KNOWN_EFFECTS = {
    ("render/terminal", "os.environ"),
    ("render/terminal", "os.get_terminal_size"),
}
# Names of another file that begin with an underscore, with the same rule.
KNOWN_PRIVATE: set[tuple[str, str]] = set()
OF_TUPLES = ("_asdict", "_fields", "_field_defaults", "_make", "_replace")


def room(path: str) -> str:
    """The longest key of `MAY` that it lies in; files of the package's own folder are one room."""
    parts = path.split("/")
    return next((key for n in range(len(parts), 0, -1) if (key := "/".join(parts[:n])) in MAY), "")


def allowed(source: str, target: str) -> bool:
    home = room(of_package(target))
    return (
        target == "errors"
        or home in (room(source), room(of_package(source)))
        or not {home, target}.isdisjoint(MAY[room(source)])
    )


def test_every_file_lies_in_a_room() -> None:
    assert {file for file in FILES if "/" in file and not room(file)} == set()
    assert {key for key in MAY if key and not any(file == key or file.startswith(f"{key}/") for file in FILES)} == set()


def test_imports_are_those_that_a_room_may_have() -> None:
    wrong = {
        (file, one) for file in FILES if file != "__init__" for one in imported_files(file) if not allowed(file, one)
    }
    assert wrong == KNOWN, "what is no longer wrong leaves the list"


def test_what_a_room_may_import_it_does_import() -> None:
    """A permission that nobody uses is taken back."""
    used = {
        (room(file), name) for file in FILES for one in imported_files(file) for name in (one, room(of_package(one)))
    }
    assert {(key, entry) for key, may in MAY.items() for entry in may - BELOW} - used == set()


@pytest.mark.parametrize("pure", PURE)
def test_what_decides_only_computes(pure: str) -> None:
    files = [file for file in FILES if file == pure or file.startswith(f"{pure}/")]
    found = {(file, name) for file in files for name in _used(file) if not _computes(name)}
    assert found == {one for one in KNOWN_EFFECTS if one[0] in files}, "what is no longer wrong leaves the list"


def _used(file: str) -> set[str]:
    """Modules of others, as far as they are named: `os.path` of `os.path.join(…)`; and builtins that act."""
    nodes = list(ast.walk(ast.parse((SOURCE / f"{file}.py").read_text(encoding="utf-8"))))
    used, modules = set(), set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("gpulease"):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ACTS:
            used.add(f"builtins.{node.func.id}")
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            used.add(f"{node.value.id}.{node.attr}")
    return used


def _computes(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:n]) in COMPUTES for n in range(1, len(parts) + 1))


def test_no_file_uses_private_names_of_another() -> None:
    used = {(file, name) for file in FILES for name in _private_names(file)}
    assert used == KNOWN_PRIVATE, "what is no longer wrong leaves the list"


def _private_names(file: str) -> set[str]:
    """As `from gpulease.api.leases import _bytes`, and as `leases._bytes` of an imported module."""
    nodes = list(ast.walk(ast.parse((SOURCE / f"{file}.py").read_text(encoding="utf-8"))))
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


def test_no_folder_has_more_than_can_be_looked_through() -> None:
    folders = {folder: len(list(folder.glob("*.py"))) for folder in {(SOURCE / file).parent for file in FILES}}
    assert {str(folder.relative_to(SOURCE)): count for folder, count in folders.items() if count > 55} == {}


def test_tests_lie_in_the_rooms_of_what_they_test() -> None:
    tests = {str(path.parent.relative_to(ROOT / "tests")) for path in (ROOT / "tests").rglob("test_*.py")}
    assert tests - {of_package(file) for file in FILES} == {"checks", "conformance", "properties"}


def test_the_overview_has_all_rooms_and_files() -> None:
    check = [sys.executable, str(ROOT / "tools" / "house_page.py"), "--check"]
    assert subprocess.run(check).returncode == 0, "run: python tools/house_page.py"


@pytest.mark.parametrize("page", ["architecture/overview.md", "pictures/processes.svg"])
def test_files_that_the_overview_names_are_there(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    named = set(re.findall(r"(?<![\w/.-])[a-z_]+(?:/[a-z_]+)+\.py\b", text))
    assert named
    assert sorted(name for name in named if not ((SOURCE / name).exists() or (ROOT / name).exists())) == []
