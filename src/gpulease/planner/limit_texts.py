"""Limits as text, `user:*:gpus=4:jobs=1000 group:students:gpus=8`, read into the planner's values. Pure.

`gpulease help limits` has what each amount does. A text that is accepted here can always be planned with.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from gpulease.errors import UsageError
from gpulease.model.quantities import parse_bytes, parse_seconds
from gpulease.planner import Limit
from gpulease.planner.limits import COUNTED
from gpulease.planner.policy import UNLIMITED

EVERY_PRIORITY = (-1_000_000, 1_000_000)


class Amount(NamedTuple):
    """What may be limited: how it is read, what `none` stands for, and what is allowed."""

    field: str
    read: Callable[[str], Any]
    none: Any
    allowed: str


def _count(text: str) -> int:
    if not 0 <= int(text) <= 1_000_000:
        raise ValueError
    return int(text)


def _time(text: str) -> float:
    number = parse_seconds(text)
    if number <= 0:
        raise ValueError
    return number


def _range(text: str) -> tuple[int, int]:
    """`5-9`, `-3-9`, `5`."""
    first, dash, last = text[1:].partition("-")
    low = int(text[:1] + first)
    high = int(last) if dash else low
    if not EVERY_PRIORITY[0] <= low <= high <= EVERY_PRIORITY[1]:
        raise ValueError
    return low, high


AMOUNTS = {
    "gpus": Amount("gpus", _count, UNLIMITED, "0 to 1000000"),
    "shares": Amount("shares", _count, UNLIMITED, "0 to 1000000"),
    "jobs": Amount("jobs", _count, UNLIMITED, "0 to 1000000"),
    "log-limit": Amount("log_limit", parse_bytes, UNLIMITED, "a size, as 1G"),
    "longest-lease": Amount("longest_lease", _time, inf, "a time, as 7d"),
    "longest-reservation": Amount("longest_reservation", _time, inf, "a time, as 8h"),
    "time-limit": Amount("time_limit", _time, inf, "a time, as 1d"),
    "priorities": Amount("priorities", _range, EVERY_PRIORITY, "a range, as 5-9"),
}


def read_limits(text: str) -> tuple[Limit, ...]:
    """Several are divided by spaces."""
    found = [read_limit(*part.split(":")) for part in ([] if text == "none" else text.split())]
    named = [(limit.scope, limit.name) for limit in found]
    for scope, name in named:
        if named.count((scope, name)) > 1:
            raise UsageError(f"The limits of {scope}:{name} are there twice.", "Write them as one.")
    return tuple(found)


def read_limit(scope: str, name: str = "", *amounts: str) -> Limit:
    """One of them, from the parts between its colons."""
    if scope not in ("user", "group", "priority") or not name or not amounts:
        what = ":".join((scope, name, *amounts))
        raise UsageError(
            f"{what[:60]!r} is no limit.", "Write user, group or priority, whose, and how much: user:*:gpus=4"
        )
    if scope == "priority":
        _check_priority(name)
    values = dict(_amount(scope, name, amount) for amount in _with_times(amounts))
    return Limit(scope, name, **values)


def _with_times(parts: tuple[str, ...]) -> list[str]:
    """The parts between colons, where `01:30:00` is one."""
    found: list[str] = []
    for part in parts:
        if found and part.isdecimal():
            found[-1] += f":{part}"
        else:
            found.append(part)
    return found


def _check_priority(name: str) -> None:
    try:
        right = EVERY_PRIORITY[0] <= int(name) <= EVERY_PRIORITY[1]
    except ValueError:
        right = False
    if not right:
        step = "Write priority:8:gpus=6 for priority 8 and every larger number together."
        raise UsageError(f"The limit of priority {name[:40]!r} has no number.", step)


def _amount(scope: str, name: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if key not in AMOUNTS or not equals:
        raise UsageError(f"{text[:40]!r} cannot be limited.", _meant(key))
    if scope != "user" and key not in COUNTED:
        each = f"user:@{name}" if scope == "group" else "user:*"
        raise UsageError(f"{key} is a limit of each user, not of a {scope}.", f"Write {each}:{text}.")
    amount = AMOUNTS[key]
    try:
        return amount.field, amount.none if value == "none" else amount.read(value)
    except ValueError:  # also a UsageError
        raise UsageError(f"{value[:40]!r} is no value for {key}.", f"Give {amount.allowed}, or none.") from None


def _meant(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, AMOUNTS, 1)
    return f"{f'Did you mean {close[0]}? ' if close else ''}There are: {', '.join(AMOUNTS)}."
