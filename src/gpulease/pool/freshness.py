"""Whether a function that is pickled by value would pickle to the same bytes again.

In a notebook a function's global may have another value at the next call, and workers must see that. To pickle it
anew costs more than a short call; to compare what it refers to costs little.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType, NoneType

STABLE = (int, float, complex, str, bytes, NoneType, ModuleType)  # these do not change in place
DEEPEST = 8


def references(function: object, depth: int = 0) -> tuple[object, ...] | None:
    """What the pickle of `function` is made of; None where some of it may change in place."""
    if type(function) is not FunctionType or depth > DEEPEST:
        return None
    found: list[object] = [function.__code__]
    for value in _values(function):
        if type(value) in STABLE or _importable(value):
            found.append(value)
            continue
        inner = () if value is function else references(value, depth + 1)
        if inner is None:
            return None
        found.append(value)
        found.extend(inner)
    return tuple(found)


def same(one: tuple[object, ...], other: tuple[object, ...] | None) -> bool:
    return other is not None and len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _values(function: FunctionType) -> Iterator[object]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield from function.__dict__.values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)


def _importable(value: object) -> bool:
    return isinstance(value, (type, FunctionType)) and value.__module__ != "__main__" and "<" not in value.__qualname__
