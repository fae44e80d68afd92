"""A name stands for one thing: no two classes are called the same.

The drop-ins for older tools have those tools' names.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "gpulease"
FILES = [file for file in SOURCE.rglob("*.py") if "compat" not in file.relative_to(SOURCE).parts]


def test_no_two_classes_have_one_name() -> None:
    classes = Counter(
        node.name
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in classes.items() if count > 1} == set()
