"""What a plan says: grants to make, devices held, and on demand why each waits and when it should start.

Not here: making leases of grants; the caller does, since it knows the owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf
from typing import NamedTuple

from gpulease.model.values import Cause, Lease, Owner, Waiting
from gpulease.planner.board import Board, RunningCounts
from gpulease.planner.fairness import Standing
from gpulease.planner.forecast import (
    AHEAD,
    LENIENT,
    NO_FORECAST,
    OUT_OF_REACH,
    CertainStart,
    Course,
    EarlierForecast,
    Forecast,
    KnownEnds,
    Start,
    certain_start,
    compared,
    enforced_end,
    expected_starts,
    forecast,
    look_ahead,
    running_from,
    running_lease,
)
from gpulease.planner.holds import Hold
from gpulease.planner.lengths import Alike
from gpulease.planner.limits import Ledger
from gpulease.planner.line import Line
from gpulease.planner.reasons import Reason
from gpulease.planner.search import ROUNDING, Orders, next_in_line
from gpulease.planner.why import Overtaken, Verdict, verdicts, why

OF_SWEEP = 16  # of one sweep with a cap that are looked ahead at: the rest of it is far from its turn


class LookAhead:
    """The requests that are served next, when each should start, and which go before which.

    Made with the plan, worked out on demand. Granted requests may have left the queue by then.
    """

    def __init__(
        self,
        line: Line,
        board: Board,
        ledger: Ledger,
        running: RunningCounts,
        orders: Orders,
        standing: Standing,
        granted: Sequence[tuple[Waiting, tuple[str, ...]]],
        before: Sequence[str],
        able: Callable[[Waiting], bool],
        known_ends: Callable[[], KnownEnds],
        said: Mapping[str, EarlierForecast],
    ) -> None:
        """`granted` by this plan, with their devices. `before`: ids that go first. `able`: not kept back."""
        self.line, self.board, self.ledger, self.running = line, board, ledger, running
        self.orders, self.standing, self.granted, self.before = orders, standing, granted, before
        self.able, self._known_ends, self.said = able, known_ends, said
        self.now, self.lengths = board.now, orders.lengths

    @cached_property
    def known_ends(self) -> KnownEnds:
        return self._known_ends()

    @cached_property
    def first(self) -> list[Waiting]:
        """The next requests among the ones that were not granted anything."""
        capped = Counter[int]()

        def able(waiting: Waiting) -> bool:
            if not self.may_start_later(waiting):
                return False
            if waiting.cap is not None:
                capped[waiting.cap] += 1
            return waiting.cap is None or capped[waiting.cap] <= OF_SWEEP

        return next_in_line(self.line, self.standing, self.before, able, AHEAD, self.orders.usual)

    def may_start_later(self, waiting: Waiting) -> bool:
        """Whether nothing but devices, limits and its sweep's cap is in its way."""
        if waiting.blocked is not None or not waiting.request.gpus or not self.able(waiting):
            return False
        return (waiting.request.not_before or -inf) <= self.now

    def overtaken(self, waiting: Waiting) -> Overtaken | None:
        return self.orders.overtaken(waiting, self.first, self.standing)

    # ---------------------------------------------------------------- when

    def forecast(self, waiting: Waiting) -> tuple[Forecast, int]:
        """What to tell of its start, and what that was worked out from; nothing of one that is far from its turn."""
        if waiting.id not in self._places:
            return NO_FORECAST, 0
        basis, start = self._basis(waiting), self._expected.get(waiting.id)
        return forecast(start, self._sure(waiting), self.said.get(waiting.id), basis, self.now), basis

    def _sure(self, waiting: Waiting) -> CertainStart | None:
        """Nothing is sure where more wait than there are devices."""
        if len(self.line) - len(self.granted) > len(self.board.slots):
            return None
        granted = {one.id for one, _ in self.granted}
        others = [one for one in self.line if one.id != waiting.id and one.id not in granted]
        return certain_start(waiting, others, self.board, self.ledger, self.known_ends)

    def _basis(self, waiting: Waiting) -> int:
        """The same as long as nothing but time has passed, of all that it waits for."""
        before = tuple(islice(self._places, self._places[waiting.id]))
        return hash((self._held, before, waiting.request))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {one.id: place for place, one in enumerate(self.first)}

    @cached_property
    def _held(self) -> int:
        held = {(lease.id, lease.until) for slot in self.board.slots for lease in slot.leases}
        held |= {(one.id, None) for one, _ in self.granted}
        return hash((frozenset(held), tuple(slot.state.state in OUT_OF_REACH for slot in self.board.slots)))

    @cached_property
    def _expected(self) -> dict[str, Start]:
        late = [
            compared(one.start.played - one.at, self.now - one.at)
            for one in self.said.values()
            if self.now > one.start.latest + LENIENT
        ]
        return look_ahead(self.play, self.lengths, late)

    def play(self, course: Course) -> dict[str, float]:
        """When the first requests that were not granted anything start in one course of events."""
        leases = {lease.id: lease for slot in self.board.slots for lease in slot.leases}
        running = [running_lease(lease, self._end_of(lease, course)) for lease in leases.values()]
        for waiting, devices in self.granted:
            running.append(running_from(self.now, waiting, devices, course.length_of(waiting)))
        if all(one.end is None for one in running):
            return {}
        return expected_starts(self.first, running, self.now, self.board, self.ledger, self.running, course.length_of)

    def _end_of(self, lease: Lease, course: Course) -> float | None:
        """A lease whose own process waits for more ends by its limit only."""
        limit = enforced_end(lease, self.known_ends)
        return limit if lease.id in self.known_ends.stay else course.end_of(lease, limit)


REVIEW = 60.0  # seconds after which holds are judged again when nothing else happens


class Grant(NamedTuple):
    """Give these devices to this request."""

    id: str
    devices: tuple[str, ...]  # UUIDs, in the order of their indices
    host: str
    memory: int | None  # bytes, for a share
    max_leases: int | None = None
    shape: str | None = None  # under which its like are known
    outsiders: tuple[tuple[int, int | None], ...] = ()  # who is on the device beside it
    packed: bool = False


class Plan:
    """Reasons hold for the queue as it was; ask them before the next change to the entries that wait."""

    def __init__(
        self,
        grants: tuple[Grant, ...],
        holds: tuple[Hold, ...],
        now: float,
        board: Board,
        ledger: Ledger,
        line: Line,
        closed: Mapping[str, Cause],
        running: RunningCounts,
        patience: Callable[[str, Alike], float],
        ahead: LookAhead,
    ) -> None:
        self.grants = grants
        self.holds = holds
        self.now = now
        self._board = board
        self._ledger = ledger
        self._line = line
        self._closed = closed
        self.ahead = ahead
        self._running = running
        self._patience = patience
        self._granted = {grant.id for grant in grants}
        self._held = {hold.id: hold for hold in holds}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return (self.grants, self.holds, self.now) == (other.grants, other.holds, other.now)

    def __hash__(self) -> int:
        return hash((self.grants, self.holds, self.now))

    def reason(self, id: str) -> Reason:
        """Why `id` still waits. KeyError when it was granted or is not in the queue."""
        waiting = self._waiting(id)
        return why(
            waiting, self._board, self._ledger, self._held.get(id), self._closed, self._running, self.now,
            lambda: self.forecast(id)[0], self.ahead.overtaken,
        )  # fmt: skip

    def forecast(self, id: str) -> tuple[Forecast, int]:
        """What to tell of the start of `id`, and what that was worked out from: see `forecast.updated_forecast`."""
        return self.ahead.forecast(self._line[id])

    def expected_start(self, id: str) -> Start | None:
        """When `id` should start; None when nobody can say, or when it is far from its turn."""
        return self.forecast(id)[0].start

    def explain(self, id: str) -> tuple[Verdict, ...]:
        """Why each device does not serve `id`, device by device."""
        if not self._waiting(id).request.gpus:
            return ()
        return verdicts(self._waiting(id), self._board, self._ledger, self.now, self.ahead.known_ends)

    @property
    def next_wakeup(self) -> float | None:
        """When this plan could change by the clock alone; None if only an event can change it."""
        moments = [self._line.starts.after(self.now), self._next_deadline()]
        if self._held:
            moments.append(self.now + REVIEW)
        return min((moment for moment in moments if moment is not None), default=None)

    def _waiting(self, id: str) -> Waiting:
        if id in self._granted:
            raise KeyError(id)
        return self._line[id]

    def _next_deadline(self) -> float | None:
        """When patience ends next."""
        moments: list[float] = []
        for tier in self._line.tiers.values():
            for party, families in tier.parties.items():
                for queues in families.values():
                    spans = ((self._patience(party.user, like), queue) for like, queue in queues.undeclared.items())
                    for span, queue in ((0.0, queues.deadline), *spans):
                        found = queue.after(self.now - span + ROUNDING)
                        moments += [] if found is None else [found + span]
        return min(moments, default=None)


def lease_of(grant: Grant, waiting: Waiting, owner: Owner, now: float, until: float | None = None) -> Lease:
    """The lease that a grant becomes. The request's id stays its id."""
    request = waiting.request
    return Lease(
        id=grant.id,
        kind=waiting.kind,
        devices=grant.devices,
        owner=owner,
        since=now,
        until=until,
        memory=grant.memory,
        priority=request.priority,
        duration=request.duration,
        max_leases=grant.max_leases,
        shape=grant.shape,
        outsiders=grant.outsiders,
        cap=waiting.cap,
        packed=grant.packed,
    )
