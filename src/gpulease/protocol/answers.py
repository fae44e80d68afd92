"""PURE: whether an answer of the broker has the shape that is declared for it.

Asked only when a command has stumbled over one: a broker of another version, or of a user with bad intentions, may
answer anything, and that is told as such, while a mistake of ours is not.
"""

from __future__ import annotations

from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from gpulease.protocol.messages import REPLIES, Changed, Granted, JobId, LeaseRow, Message, RequestRow, StillWaiting

LATEST = 1e11  # Unix seconds that a calendar can show
LARGEST = 1 << 63
UNION = type(int | None)

# Beside `ok`, whose shape depends on the verb.
KINDS = {"granted": Granted, "waiting": StillWaiting, "snapshot": Changed, "changed": Changed}
# Of what messages.py declares as a plain dictionary.
WITHIN = {"lease": LeaseRow, "request": RequestRow}
LISTS = {"exclude": ("excluded", str), "include": ("included", str)}


def misfit(verb: str, message: Message) -> str | None:
    """What is wrong with the answer to `verb`, as `jobs[0].id is missing`; None where nothing is."""
    kind = next((name for name in KINDS if name in message), None)
    if kind is not None:
        return _misfit(message[kind], KINDS[kind], kind)
    told = message.get("ok", message)
    if isinstance(told, dict) and told.keys() == {"ids"}:  # of `ls`, which was asked for no more
        return _misfit(told["ids"], list[int], "ids")
    listed, shape = {**REPLIES, **LISTS}.get(verb, (None, dict[str, Any]))
    if listed is None:
        return _misfit(told, shape, "")
    return _misfit(told, dict[str, Any], "") or _misfit_of_list(told.get(listed), shape, listed)


def _misfit(value: Any, shape: Any, at: str) -> str | None:
    if is_typeddict(shape):
        return _misfit_of_fields(value, shape, at)
    if shape == JobId:
        return None if _is_job_id(value) else f"{at or 'it'} is {str(value)[:40]!r}"
    if get_origin(shape) is UNION:
        found = [_misfit(value, one, at) for one in get_args(shape)]
        return None if None in found else max(found, key=lambda text: len(text or ""))
    if get_origin(shape) is list:
        return _misfit_of_list(value, get_args(shape)[0], at)
    if get_origin(shape) is dict and isinstance(value, dict):
        return _first(_misfit(one, get_args(shape)[1], f"{at}.{name}"[:80]) for name, one in value.items())
    return None if _is_plain(value, shape) else f"{at or 'it'} is {str(value)[:40]!r}"


def _misfit_of_list(value: Any, shape: Any, at: str) -> str | None:
    if not isinstance(value, list):
        return f"{at or 'it'} is {str(value)[:40]!r}"
    return _first(_misfit(one, shape, f"{at}[{number}]") for number, one in enumerate(value))


def _misfit_of_fields(value: Any, shape: Any, at: str) -> str | None:
    if not isinstance(value, dict):
        return f"{at or 'it'} is {str(value)[:40]!r}"
    for name, kind in get_type_hints(shape, include_extras=True).items():
        place = f"{at}.{name}" if at else name
        optional = get_origin(kind) is NotRequired
        inner = get_args(kind)[0] if optional else kind
        if name not in value and not optional:
            return f"{place} is missing"
        if name in WITHIN and isinstance(value.get(name), dict):
            inner = WITHIN[name]
        if name in value and (wrong := _misfit(value[name], inner, place)) is not None:
            return wrong
    return None


def _is_job_id(value: Any) -> bool:
    """A number; of an engine also text, as `12_3`."""
    if isinstance(value, str):
        return len(value) < 40 and value.isascii() and all(part.isdecimal() for part in value.split("_"))
    return _is_plain(value, int)


def _first(found: Any) -> str | None:
    return next((wrong for wrong in found if wrong is not None), None)


def _is_plain(value: Any, shape: Any) -> bool:
    if shape is Any or get_origin(shape) is not None:
        return shape is Any  # a dictionary was due
    if shape in (None, type(None)):
        return value is None
    if shape is float:
        return isinstance(value, (int, float)) and abs(value) < LATEST  # which what is no number is not
    if shape is int:
        return isinstance(value, int) and abs(value) < LARGEST
    return isinstance(value, shape) and (shape is not str or "\0" not in value)
