"""No message shows `[Errno 2] No such file or directory: '…'`: what the system refused is told in words alone."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

from gpulease.errors import in_words

SOURCE = Path(__file__).parents[2] / "src" / "gpulease"


def test_words_have_no_number() -> None:
    assert in_words(FileNotFoundError(2, "No such file or directory", "x")) == "No such file or directory"
    assert in_words(OSError("libx.so: cannot open")) == "libx.so: cannot open"
    assert in_words(ValueError("no number")) == "no number"
    assert in_words(URLError(ConnectionRefusedError(111, "Connection refused"))) == "Connection refused"


def test_no_message_shows_an_error_of_the_system_as_it_is() -> None:
    shown = [f"{file.relative_to(SOURCE)}:{line}" for file in SOURCE.rglob("*.py") for line in _shown(file)]
    assert shown == [], "use gpulease.errors.in_words"


def _shown(file: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and node.name and _is_of_the_system(node.type):
            for inner in ast.walk(node):
                if isinstance(inner, ast.expr) and _is_text_of(inner, node.name):
                    yield inner.lineno


def _is_of_the_system(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    names = [node.id for node in kinds if isinstance(node, ast.Name)]
    found = [getattr(builtins, name, None) for name in names]
    return any(isinstance(one, type) and issubclass(one, OSError) for one in found)


def _is_text_of(node: ast.expr, name: str) -> bool:
    """As `{error}` in an f-string, and as `str(error)`."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "str":
        parts: list[ast.expr] = node.args
    elif isinstance(node, ast.FormattedValue):
        parts = node.value.values if isinstance(node.value, ast.BoolOp) else [node.value]
    else:
        return False
    return any(isinstance(part, ast.Name) and part.id == name for part in parts)
