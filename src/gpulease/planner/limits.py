"""Limits: what a user may have at all, and how many devices a user, a group or a priority may hold at once.

As text they are `user:*:gpus=4:jobs=1000 group:students:gpus=8`; `gpulease help limits` has what each amount does. A
text that is accepted here can always be planned with. Not here: whether a device is free. A limit that is reached is
named, so that the reason can say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from gpulease.errors import UsageError
from gpulease.model.quantities import parse_bytes, parse_seconds
from gpulease.model.values import Device, Lease, Waiting
from gpulease.planner.board import Board
from gpulease.planner.line import Party, family_of, party_of
from gpulease.planner.policy import MAX_SHARES, UNLIMITED, Limit, Policy

PARTS = 1 << 20  # of a GPU; shares are counted in them, in whole numbers, so that sums are exact
AMOUNTS = Limit._fields[2:]
COUNTED = ("gpus", "shares")  # what is held at once


def limits_of(limits: Sequence[Limit], user: str, groups: Sequence[str], amounts: Sequence[str] = AMOUNTS) -> Limit:
    """What holds for one user, each amount by itself: by name, else for a group of theirs, else for everybody.

    Of several groups the most generous counts.
    """
    mine = [limit for limit in limits if limit.scope == "user"]
    member = {f"@{group}" for group in groups}
    ranks = (
        [limit for limit in mine if limit.name == user],
        [limit for limit in mine if limit.name in member],
        [limit for limit in mine if limit.name == "*"],
    )
    return Limit("user", user, **_most_specific(ranks, amounts))


def _most_specific(ranks: Sequence[Sequence[Limit]], amounts: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in amounts:
        for rank in ranks:
            said = [value for one in rank if (value := getattr(one, name)) is not None]
            if said:
                found[name] = _widest(said) if name == "priorities" else max(said)
                break
    return found


def _widest(ranges: list[tuple[int, int]]) -> tuple[int, int]:
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def parts_of(gpus: int, memory: int | None, total: int | None) -> int:
    """How much of GPUs whole devices are, or a share of one with `total` bytes."""
    if memory is None:
        return gpus * PARTS
    return min(PARTS, -(-memory * PARTS // total)) if total else PARTS


class Reached(NamedTuple):
    """A limit that a request would exceed."""

    limit: Limit
    what: str  # "gpus" or "shares"
    most: int
    used: float
    never: bool  # the request alone is more than the limit


class Ledger:
    """What is held, by everything that a limit can name; updated as a plan grants."""

    def __init__(self, leases: Sequence[Lease], policy: Policy, devices: Mapping[str, Device]) -> None:
        self.limits = [limit for limit in policy.limits if (limit.gpus, limit.shares) != (None, None)]
        self.used: Counter[tuple[str, str, str]] = Counter()
        self.shares = Counter(lease.owner.user for lease in leases if lease.memory is not None)
        self._limits: dict[tuple[Party, int], list[Limit]] = {}  # that were looked up
        for lease in leases if self.limits else ():
            device = devices.get(lease.devices[0]) if lease.devices else None
            parts = parts_of(len(lease.devices), lease.memory, None if device is None else device.memory_total)
            owner = lease.owner
            self._count(Party(owner.user, owner.groups), lease.priority, parts, lease.memory is not None)

    def copy(self) -> Ledger:
        other = Ledger.__new__(Ledger)
        other.__dict__ |= self.__dict__
        other.used, other.shares = self.used.copy(), self.shares.copy()
        return other

    def add(self, party: Party, priority: int, parts: int, share: int) -> None:
        """Count what is granted; or, below zero, what is given back."""
        self.shares[party.user] += share
        if self.limits:
            self._count(party, priority, parts, share)

    def _count(self, party: Party, priority: int, parts: int, share: int) -> None:
        for limit in self._applying(party, priority):
            self.used[limit.scope, limit.name, "gpus"] += parts
            self.used[limit.scope, limit.name, "shares"] += share

    def crowded(self, user: str) -> bool:
        """Whether a user has all shares that one may have: each costs every plan a little."""
        return self.shares[user] >= MAX_SHARES

    def stops(self, waiting: Waiting, board: Board) -> Reached | None:
        """The first limit that keeps a request from what it wants."""
        request, share = waiting.request, waiting.request.memory is not None
        if share and self.crowded(waiting.user):
            bound = Limit("user", waiting.user, shares=MAX_SHARES)
            return Reached(bound, "shares", MAX_SHARES, self.shares[waiting.user], False)
        if not self.limits:
            return None
        total = board.least_memory(family_of(waiting.kind, request)) if share else None
        parts = parts_of(request.gpus, request.memory, total)
        for limit in self._applying(party_of(waiting), request.priority):
            wanted = (("gpus", limit.gpus, parts, PARTS), ("shares", limit.shares if share else None, 1, 1))
            for what, most, amount, unit in wanted:
                used = self.used[limit.scope, limit.name, what]
                if most is not None and used + amount > most * unit:
                    return Reached(limit, what, most, used / unit, amount > most * unit)
        return None

    def left(self, party: Party, priority: int, total: int | None) -> int:
        """The most whole devices that every limit still allows; or bytes of a share of a device that has `total`."""
        left = UNLIMITED
        for limit in self._applying(party, priority):
            if limit.gpus is not None:
                free = limit.gpus * PARTS - self.used[limit.scope, limit.name, "gpus"]
                if total is None:
                    left = min(left, free // PARTS)
                elif free < PARTS:
                    left = min(left, free * total // PARTS)
            if total is not None and limit.shares is not None:
                left = left if self.used[limit.scope, limit.name, "shares"] < limit.shares else 0
        return left

    def _applying(self, party: Party, priority: int) -> list[Limit]:
        found = self._limits.get((party, priority))
        if found is None:
            found = [limits_of(self.limits, *party, COUNTED), *map(self._of_group, party.groups)]
            found += [one for one in self.limits if one.scope == "priority" and priority >= int(one.name)]
            found = [limit for limit in found if (limit.gpus, limit.shares) != (None, None)]
            self._limits[party, priority] = found
        return found

    def _of_group(self, group: str) -> Limit:
        ranks = [[one for one in self.limits if (one.scope, one.name) == ("group", name)] for name in (group, "*")]
        return Limit("group", group, **_most_specific(ranks, COUNTED))


# -------------------------------------------------------------------- as text

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


NAMED_AMOUNTS = {
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
            f"{what[:60]!r} is not a limit.", "Write user, group or priority, whose, and how much: user:*:gpus=4"
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
    if key not in NAMED_AMOUNTS or not equals:
        raise UsageError(f"{text[:40]!r} cannot be limited.", _meant(key))
    if scope != "user" and key not in COUNTED:
        each = f"user:@{name}" if scope == "group" else "user:*"
        raise UsageError(f"{key} is a limit of each user, not of a {scope}.", f"Write {each}:{text}.")
    amount = NAMED_AMOUNTS[key]
    try:
        return amount.field, amount.none if value == "none" else amount.read(value)
    except ValueError:  # also a UsageError
        raise UsageError(f"{value[:40]!r} is not a value for {key}.", f"Give {amount.allowed}, or none.") from None


def _meant(key: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(key, NAMED_AMOUNTS, 1)
    return f"{f'Did you mean {close[0]}? ' if close else ''}There are: {', '.join(NAMED_AMOUNTS)}."
