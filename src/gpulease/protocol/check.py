"""PURE: whether a message has the shape that messages.py declares for it: one walk over the types, compiled once.

The broker holds every request against its type. A client holds an answer against its type when a command has stumbled
over it: a broker of another version, or of a user with bad intentions, may answer anything, and the error says so.
"""

from __future__ import annotations

from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, NamedTuple, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from gpulease import PROTOCOL
from gpulease.errors import ProtocolError, UsageError
from gpulease.protocol.messages import (
    REPLIES,
    REQUESTS,
    AtMost,
    Changed,
    Fits,
    Granted,
    JobId,
    Message,
    StillWaiting,
)  # fmt: skip

LATEST = 1e11  # Unix seconds that a calendar can show
LARGEST = 1 << 63
# Beside `ok`, whose shape depends on the verb.
KINDS = {"granted": Granted, "waiting": StillWaiting, "snapshot": Changed, "changed": Changed}


class Misfit(NamedTuple):
    at: str  # as `jobs[0].id`
    value: object
    hint: str = "Give another one."
    missing: bool = False

    def __str__(self) -> str:
        return f"{self.at} is missing" if self.missing else f"{self.at or 'it'} is {str(self.value)[:40]!r}"


Walk = Callable[[Any, str], Misfit | None]


def check(message: Message) -> Message:
    """The message, once it is known to be a request with the right fields; else an error that says what is wrong."""
    if message.get("v") != PROTOCOL:
        raise ProtocolError(f"The message has protocol version {message.get('v')!r}, this broker speaks {PROTOCOL}.")
    verb = message.get("do")
    walk = _REQUESTS.get(verb) if isinstance(verb, str) else None
    if walk is None:
        raise ProtocolError(f"The broker does not know how to do {str(verb)[:40]!r}.")
    wrong = walk(message, "")
    if wrong is not None:
        raise UsageError(f"Invalid value for {wrong.at[:80]!r}.", wrong.hint)
    return message


def misfit(verb: str, message: Message) -> str | None:
    """What is wrong with the answer to `verb`, as `jobs[0].id is missing`; None where nothing is."""
    kind = next((name for name in KINDS if name in message), None)
    if kind is not None:
        wrong = _compiled(KINDS[kind])(message[kind], kind)
    else:
        wrong = _compiled(REPLIES.get(verb, dict[str, object]))(message.get("ok", message), "")
    return None if wrong is None else str(wrong)


def _compiled(shape: Any) -> Walk:
    origin = get_origin(shape)
    if shape is Any or shape is object:
        return lambda value, at: None
    if shape == JobId:
        return _plain(_is_job_id)
    if origin is Annotated:
        return _limited(*get_args(shape))
    if origin is NotRequired:
        return _compiled(get_args(shape)[0])
    if is_typeddict(shape):
        return _of_fields(shape)
    if origin in (Union, UnionType):
        return _of_either(
            [_compiled(one) for one in get_args(shape) if one is not type(None)], type(None) in get_args(shape)
        )
    if origin is list:
        return _of_list(_compiled(get_args(shape)[0]))
    if origin is dict:
        return _of_dict(_compiled(get_args(shape)[1]))
    return _plain(PLAIN[shape])


def _limited(shape: Any, limit: Fits | AtMost) -> Walk:
    if isinstance(limit, Fits):
        fits, hint = limit
        return lambda value, at: None if fits(value) else Misfit(at, value, hint)
    inner, most = _compiled(shape), limit.entries

    def walk(value: Any, at: str) -> Misfit | None:
        too_long = hasattr(value, "__len__") and len(value) > most
        return Misfit(at, value, f"Give at most {most}.") if too_long else inner(value, at)

    return walk


def _of_fields(shape: Any) -> Walk:
    hints = get_type_hints(shape, include_extras=True)
    total = shape.__total__
    fields = [(name, _compiled(kind), total and get_origin(kind) is not NotRequired) for name, kind in hints.items()]

    def walk(value: Any, at: str) -> Misfit | None:
        if not isinstance(value, dict):
            return Misfit(at, value)
        for name, inner, required in fields:
            place = f"{at}.{name}" if at else name
            if name in value:
                wrong = inner(value[name], place)
                if wrong is not None:
                    return wrong
            elif required:
                return Misfit(place, None, missing=True)
        return None

    return walk


def _of_either(walks: list[Walk], or_none: bool) -> Walk:
    """Where nothing fits, what came furthest says what is wrong."""

    def walk(value: Any, at: str) -> Misfit | None:
        if value is None and or_none:
            return None
        found = []
        for one in walks:
            wrong = one(value, at)
            if wrong is None:
                return None
            found.append(wrong)
        return max(found, key=lambda wrong: len(wrong.at))

    return walk


def _of_list(inner: Walk) -> Walk:
    def walk(value: Any, at: str) -> Misfit | None:
        if not isinstance(value, list):
            return Misfit(at, value)
        found = (inner(one, f"{at}[{number}]") for number, one in enumerate(value))
        return next((wrong for wrong in found if wrong is not None), None)

    return walk


def _of_dict(inner: Walk) -> Walk:
    def walk(value: Any, at: str) -> Misfit | None:
        if not isinstance(value, dict):
            return Misfit(at, value)
        found = (inner(one, f"{at}.{name}"[:80]) for name, one in value.items())
        return next((wrong for wrong in found if wrong is not None), None)

    return walk


def _plain(fits: Callable[[Any], bool]) -> Walk:
    return lambda value, at: None if fits(value) else Misfit(at, value)


def _is_job_id(value: Any) -> bool:
    """A number; of an engine also text, as `12_3`."""
    if isinstance(value, str):
        return len(value) < 40 and value.isascii() and all(part.isdecimal() for part in value.split("_"))
    return PLAIN[int](value)


PLAIN: dict[Any, Callable[[Any], bool]] = {
    type(None): lambda value: value is None,
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and abs(value) < LARGEST,
    float: lambda value: isinstance(value, (int, float)) and abs(value) < LATEST,  # which what is no number is not
    str: lambda value: isinstance(value, str) and "\0" not in value,
}
_REQUESTS = {verb: _compiled(shape) for verb, shape in REQUESTS.items()}
