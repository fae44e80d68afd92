"""Which object inside a value keeps it from being pickled, and why."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

DEEPEST = 6
MOST_PARTS = 200


def culprit(value: object, what: str, error: Exception) -> tuple[str, str]:
    """(a path of words to the innermost object that fails, the reason). Looks a bounded way down."""
    reason = _reason(error)
    for _ in range(DEEPEST):
        found = next(_failing_parts(value), None)
        if found is None:
            break
        name, value, error = found
        what, reason = f"{what}, {name}", _reason(error)
    shown = _shown(value)
    return (what if what.endswith(shown) else f"{what} ({shown})"), reason


def _reason(error: Exception) -> str:
    return f"{error}".strip().rstrip(".") or type(error).__name__


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _failing_parts(value: object) -> Iterator[tuple[str, object, Exception]]:
    import cloudpickle

    for number, (name, part) in enumerate(_parts(value)):
        if number >= MOST_PARTS:
            return
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            yield name, part, error


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"key {key!r}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"element {number}", part) for number, part in enumerate(value))
    elif inspect.isfunction(value):
        inside = inspect.getclosurevars(value)
        yield from ((f"its variable {name!r}", part) for name, part in {**inside.nonlocals, **inside.globals}.items())
        yield from ((f"its default {part!r}", part) for part in value.__defaults__ or ())
    elif inspect.ismethod(value):
        yield "its object", value.__self__
    elif not _refuses(value):
        yield from ((f"its attribute {name!r}", part) for name, part in getattr(value, "__dict__", {}).items())
        yield from ((f"its {name}", getattr(value, name)) for name in ("func", "args") if hasattr(value, name))


def _refuses(value: object) -> bool:
    """Whether it is the object itself that will not be pickled, whatever its parts are."""
    try:
        value.__reduce_ex__(5)
    except Exception:
        return True
    return False
