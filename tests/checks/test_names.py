"""A name stands for one thing: no two files and no two classes are called the same."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gpulease"
# To be emptied. Nothing may be added.
KNOWN_FILES = {"memory", "places"}
KNOWN_CLASSES = {"Owner", "Plan", "Process", "Slot", "Worker"}


def test_no_two_files_have_one_name() -> None:
    """The files of cli/ are named by their verbs."""
    files = [file for file in SOURCE.rglob("*.py") if file.stem not in ("__init__", "__main__")]
    stems = Counter(file.stem for file in files if file.parent.name != "cli")
    assert {name for name, count in stems.items() if count > 1} == KNOWN_FILES, "what is no longer so leaves the list"


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(
        node.name
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    twice = {name for name, count in classes.items() if count > 1}
    assert twice == KNOWN_CLASSES, "what is no longer so leaves the list"
