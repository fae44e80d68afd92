"""PURE: the look ahead of one plan: who is served next, when each of them should start, and who goes before whom.

Made with the plan, worked out when somebody asks. The line may have lost those who were granted by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from math import inf

from gpulease.model.values import Lease, Waiting
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
from gpulease.planner.limits import Ledger
from gpulease.planner.line import Line
from gpulease.planner.search import Orders, next_in_line
from gpulease.planner.why import Overtaken

OF_SWEEP = 16  # of one sweep with a cap that are looked ahead at: the rest of it is far from its turn


class LookAhead:
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
        """`granted`, by this plan, with their devices; `before`: ids that go first; `able`: who is not kept back."""
        self.line, self.board, self.ledger, self.running = line, board, ledger, running
        self.orders, self.standing, self.granted, self.before = orders, standing, granted, before
        self.able, self._known_ends, self.said = able, known_ends, said
        self.now, self.lengths = board.now, orders.lengths

    @cached_property
    def known_ends(self) -> KnownEnds:
        return self._known_ends()

    @cached_property
    def first(self) -> list[Waiting]:
        """Who is served next of those who were not granted anything."""
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
        """When the first of those who were not granted anything start in one course of events."""
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
