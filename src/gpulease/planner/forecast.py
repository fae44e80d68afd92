"""PURE: what is told of a start: the expected range, what is sure by limits that are enforced, and that it is late.

A bound that was told does not move away while nothing but time passes: it is kept, or the start is late, and then
no new time is told before something has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from gpulease.model.values import Lease, Waiting
from gpulease.planner.board import Board, Slot
from gpulease.planner.device_states import DRAINING, EXCLUDED, LOST, OUTSIDE
from gpulease.planner.expected import LENIENT, Start
from gpulease.planner.limits import Ledger
from gpulease.planner.line import family_of

OUT_OF_REACH = (OUTSIDE, DRAINING, EXCLUDED, LOST)


class Fates(NamedTuple):
    """What is known of leases beside how long their like ran."""

    stay: frozenset[str] = frozenset()  # leases whose own process, or run, waits for more: they do not end before
    limits: Mapping[str, float] = {}  # never changed: by lease, when the broker ends it whatever it does


NO_FATES = Fates()


def enforced_end(lease: Lease, fates: Fates) -> float | None:
    """When the broker takes the lease back at the latest; None where it goes on for as long as its owner likes."""
    ends = [end for end in (lease.until, fates.limits.get(lease.id)) if end is not None]
    return min(ends, default=None)


class Said(NamedTuple):
    """What was told of one start: first, which the score compares, and last, with what it was worked out from."""

    at: float
    start: Start
    latest: float
    basis: int


class Sure(NamedTuple):
    """A moment by which a request starts if the line stays as it is, and the leases whose limits make it so."""

    moment: float
    leases: tuple[str, ...]


class Forecast(NamedTuple):
    start: Start | None = None
    missed: float | None = None  # by when it should have started, if it is late
    sure: Sure | None = None

    @property
    def moments(self) -> dict[str, float | None]:
        """As JSON has it."""
        likely, latest = (None, None) if self.start is None else self.start[:2]
        sure = None if self.sure is None else self.sure.moment
        return {"expected_start": likely, "expected_latest": latest, "expected_missed": self.missed, "sure_by": sure}


NO_FORECAST = Forecast()


def forecast(fresh: Start | None, sure: Sure | None, said: Said | None, basis: int, now: float) -> Forecast:
    """What to tell now of a start that was worked out as `fresh`, after what was said of it before."""
    start, missed = fresh, None
    if said is not None and said.basis == basis:
        if now > said.latest + LENIENT:
            start, missed = None, said.latest
        elif fresh is not None:
            start = _by(fresh, said.latest)
    if sure is not None:
        start = start and _by(start, sure.moment)
    return Forecast(start, missed, sure)


def _by(start: Start, bound: float) -> Start:
    return start._replace(likely=min(start.likely, bound), latest=min(start.latest, bound))


def said_now(said: Said | None, told: Forecast, basis: int, now: float) -> Said | None:
    """What to remember after somebody was told this."""
    if told.start is None:
        return said
    if said is None:
        return Said(now, told.start, told.start.latest, basis)
    return said._replace(latest=told.start.latest, basis=basis)


# -------------------------------------------------------------------- what is sure


def sure_start(waiting: Waiting, others: Iterable[Waiting], board: Board, ledger: Ledger, fates: Fates) -> Sure | None:
    """By when so many devices fall free, by limits that the broker enforces, that it has one whatever others take.

    Any of the `others` in the line may come to go first, by fair share or as it is shorter, and takes what it asks for;
    one of a later priority does so only where the request wants several devices, and waits for the last of them.
    Quotas and caps may keep a request back at any time, so nothing is sure under them.
    """
    request = waiting.request
    if ledger.limits or waiting.cap is not None or len(board.hosts) > 1:
        return None
    wanted = request.gpus
    for other in others:
        sooner = other.forced or other.request.priority <= request.priority
        wanted += other.request.gpus if sooner or request.gpus > 1 else 0
    slots = [slot for host in board.matching(family_of(waiting.kind, request)) for slot in host]
    ends = sorted(((_end(slot, board.now, fates), slot.device.label, slot) for slot in slots), key=lambda one: one[:2])
    if len(ends) < wanted or ends[wanted - 1][0] == inf:
        return None
    leases = tuple(dict.fromkeys(lease.id for _, _, slot in ends[:wanted] for lease in slot.leases))
    return Sure(ends[wanted - 1][0], leases)


def _end(slot: Slot, now: float, fates: Fates) -> float:
    if slot.state.state in OUT_OF_REACH or slot.count > len(slot.leases):
        return inf
    ends = [enforced_end(lease, fates) for lease in slot.leases]
    return max([now, *(inf if end is None else end for end in ends)])
