"""`plan`: who gets which devices now, which are held, and why everybody else waits.

For each priority in turn: first who has waited beyond the longest wait, oldest first; then who is overdue,
by fair share and the moment their patience ended; then everybody, by fair share and arrival. With an order of
the administrator's own, its requests come behind the longest wait and before all of this. Requests that fit are
granted; the first few of the overdue that do not fit have devices held for them.
Pure: no clock, no I/O, no randomness, and neither the queue nor any other argument is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from sys import maxsize

from gpulease.model.values import Cause, Device, Lease, Waiting
from gpulease.planner.board import NO_CAPS, NO_PEAKS, Board, RunningCounts, Slot
from gpulease.planner.device_states import DeviceView
from gpulease.planner.fairness import Records, Standing, Usage, doubted
from gpulease.planner.forecast import NO_KNOWN_ENDS, EarlierForecast, KnownEnds
from gpulease.planner.holds import Hold, hold, worthwhile
from gpulease.planner.lengths import NO_SKETCHES, Lengths, Sketches
from gpulease.planner.limits import Ledger, parts_of
from gpulease.planner.line import (
    Family,
    Line,
    Party,
    Queues,
    Tier,
    party_of,
    size_of,
)
from gpulease.planner.order import Ranking
from gpulease.planner.packing import Peak
from gpulease.planner.placement import place
from gpulease.planner.policy import UNLIMITED, Policy
from gpulease.planner.queue import Key
from gpulease.planner.reasons import of_user
from gpulease.planner.result import Grant, LookAhead, Plan
from gpulease.planner.search import Order, Orders, in_order

LOOKAHEAD = 8  # overdue requests, from the front, that a plan considers holding devices for
NOTHING: Mapping[str, Cause] = {}
NOTHING_SAID: Mapping[str, EarlierForecast] = {}

Room = dict[int, Sequence[tuple[float, int]]]  # by the identity of a family


def plan(
    devices: Iterable[Device],
    leases: Iterable[Lease],
    line: Line,
    policy: Policy,
    now: float,
    *,
    views: Mapping[str, DeviceView] | None = None,
    usage: Usage | None = None,
    records: Records | None = None,
    sketches: Sketches = NO_SKETCHES,
    peaks: Mapping[str, Peak] = NO_PEAKS,
    closed: Mapping[str, Cause] = NOTHING,
    order: Ranking = (),
    caps: Mapping[int, int] = NO_CAPS,
    slots: int = UNLIMITED,
    known_ends: Callable[[], KnownEnds] = lambda: NO_KNOWN_ENDS,
    said: Mapping[str, EarlierForecast] = NOTHING_SAID,
) -> Plan:
    """Decide. `views` by UUID; `closed` by kind of request (or `of_user`), each with the reason why none starts.

    `caps`: by sweep, how many of it may run at a time; `slots`: the same of requests for no device. `fates`, asked
    when somebody asks for a start, and `said`, earlier estimates of starts, are for forecasts only.
    """
    held = tuple(leases)
    unbelieved = doubted(records or {}, held, now, policy)
    running = RunningCounts(held, caps, slots)
    decision = _Decision(
        tuple(devices), held, line.under(policy), policy, now, views, usage, unbelieved, closed, peaks, running,
        Lengths(sketches, held, now), known_ends, said,
    )  # fmt: skip
    decision.force()
    if order:
        decision.serve_in(order)
    for priority in sorted(decision.line.tiers):
        decision.serve(priority)
    for priority in sorted(decision.line.light):
        decision.serve_without_device(priority)
    return decision.result()


class _Decision:
    """The moving parts of one plan."""

    def __init__(
        self,
        devices: tuple[Device, ...],
        leases: tuple[Lease, ...],
        line: Line,
        policy: Policy,
        now: float,
        views: Mapping[str, DeviceView] | None,
        usage: Usage | None,
        unbelieved: frozenset[str],
        closed: Mapping[str, Cause],
        peaks: Mapping[str, Peak],
        running: RunningCounts,
        lengths: Lengths,
        known_ends: Callable[[], KnownEnds],
        said: Mapping[str, EarlierForecast],
    ) -> None:
        self.line = line
        self._known_ends, self.said = known_ends, said
        self.lengths = lengths
        self.orders = Orders(line, policy, lengths, now)
        self.running = running
        self.policy = policy
        self.now = now
        self.closed = closed
        self.board = Board(devices, leases, views or {}, policy, now, unbelieved, peaks, lengths)
        if line.wide:
            self.board.spare()
        by_uuid = {device.uuid: device for device in devices}
        self.ledger = Ledger(leases, policy, by_uuid)
        self.standing = Standing(usage or {}, leases, by_uuid, policy, now)
        self.holding = worthwhile(self.board)
        self.grants: dict[str, Grant] = {}
        self.granted: list[Waiting] = []  # who may have left the line when somebody asks why others wait
        self.holds: dict[str, Hold] = {}
        self.order: Ranking = ()

    def result(self) -> Plan:
        return Plan(
            tuple(self.grants.values()),
            tuple(self.holds.values()),
            self.now,
            self.board,
            self.ledger,
            self.line,
            self.closed,
            self.running,
            self.orders.patience,
            self._look_ahead(),
        )

    def _look_ahead(self) -> LookAhead:
        def able(waiting: Waiting) -> bool:
            return waiting.id not in self.grants and not self.is_closed(waiting)

        granted = [(waiting, self.grants[waiting.id].devices) for waiting in self.granted]
        first = (*self.holds, *(waiting.id for waiting, _ in self.order))
        parts = (self.line, self.board, self.ledger, self.running, self.orders, self.standing)
        return LookAhead(*parts, granted, first, able, self._known_ends, self.said)

    def force(self) -> None:
        for id in sorted(self.line.forced, key=lambda id: (self.line[id].since, id)):
            waiting = self.line[id]
            if of_user(waiting.kind, waiting.user) in self.closed:
                continue
            request = self.board.as_seen(waiting).request
            spread = waiting.packed
            slots = place(self.board, waiting.kind, request, forced=True, spread=spread) if request.gpus else []
            if slots is not None:
                self.grant(waiting, slots)

    def serve_in(self, order: Ranking) -> None:
        """Grant requests that fit, in a given order. It takes no GPU from the request that has waited the longest."""
        self.order = order
        for priority in sorted(self.line.tiers):
            self.serve_first(self._longest(self.line.tiers[priority]))
        for waiting, family in order:
            if not self.board.steps(family) or waiting.id in self.grants or not self.line.holds(waiting):
                continue  # gone from the line, or changed, since the order was given; or nothing is left
            fits = self.board.fits(family, size_of(waiting.request), self.board.believed(waiting).duration)
            if fits and self.may_start(waiting):
                self.grant_where_best(waiting)

    def serve(self, priority: int) -> None:
        tier = self.line.tiers[priority]
        self.serve_first(self._longest(tier))
        if self.holding:
            self.serve_first(self._overdue(tier))
        self.fill(priority, tier, self.orders.by_patience)
        self.fill(priority, tier, self.orders.usual)

    def serve_without_device(self, priority: int) -> None:
        """Requests that need no device, while there are slots: first of the user who has fewest of them."""
        parties = self.line.light[priority].parties
        while self.running.free_slots:
            had = self.running.without_device
            heads = [(had[party.user], key) for party, found in parties.items() for key in self._heads(party, found)]
            if not heads:
                return
            self.grant(self.line[min(heads)[1][-1]], [])

    def _heads(self, party: Party, families: dict[Family, Queues]) -> Iterator[Key]:
        """The first of each class that may start, if it needs no device."""
        for family, queues in families.items():
            if self._may(family) and of_user(family.kind, party.user) not in self.closed:
                found = queues.arrival.first(inf, 0, self.now, inf, self.grants)
                if found is not None:
                    yield found[0]

    def _may(self, family: Family) -> bool:
        """Whether anything of it may start at all."""
        return family.kind not in self.closed and self.running.left(family.cap) > 0

    def _longest(self, tier: Tier) -> Iterator[str]:
        """The oldest; of a sweep with a cap as many as may start, so that the rest of it is in nobody's way."""
        capped = [
            islice(queues.arrival, min(maxsize, self.running.left(family.cap)))
            for families in tier.parties.values()
            for family, queues in families.items()
            if family.cap is not None
        ]
        for key, entry in merge(tier.oldest, *capped) if capped else tier.oldest:
            if key[0] > self.now - self.policy.longest_wait:
                return
            yield entry.id

    def _overdue(self, tier: Tier) -> Iterator[str]:
        for _, equals in groupby(self._ranked(tier.parties), key=itemgetter(0)):
            found = [(party, *one) for _, party in equals for one in tier.parties[party].items()]
            due = (
                (search, self.running.left(family.cap))
                for party, family, queues in found
                for search in self.orders.by_patience(party, queues)
            )
            yield from (key[-1] for key in in_order(due))

    def _ranked(self, parties: Iterable[Party]) -> list[tuple[float, Party]]:
        return sorted((self.standing.of(party.user), party) for party in parties)

    def serve_first(self, ids: Iterator[str]) -> None:
        """Serve the first of the overdue one by one: a grant, or a hold while holds are left."""
        refused = _Refused()
        for id in islice(ids, LOOKAHEAD):
            if len(self.holds) >= self.policy.max_holds:
                return
            waiting = self.line[id]
            if id in self.grants or id in self.holds or not self.may_start(waiting):
                continue
            family, size = self.line.family(waiting), size_of(waiting.request)
            if self.board.fits(family, size, self.board.believed(waiting).duration):
                self.grant_where_best(waiting)
            elif not refused.covers(size, family) and not self.keep(waiting, family):
                refused.add(size, family)

    def keep(self, waiting: Waiting, family: Family) -> bool:
        possible = self.board.ever(family, size_of(waiting.request))
        kept = hold(self.board, waiting, self.now) if possible else None
        if kept is not None:
            self.holds[waiting.id] = kept
        return kept is not None

    def may_start(self, waiting: Waiting) -> bool:
        if self.is_closed(waiting):
            return False
        if (waiting.request.not_before or -inf) > self.now or not self.running.left(waiting.cap):
            return False
        return self.ledger.stops(self.board.as_seen(waiting), self.board) is None

    def is_closed(self, waiting: Waiting) -> bool:
        return waiting.kind in self.closed or of_user(waiting.kind, waiting.user) in self.closed

    def fill(self, priority: int, tier: Tier, order: Order) -> None:
        """Grant requests that fit, in order, until none does."""
        parties = list(tier.parties)
        while (waiting := self._next(priority, tier, parties, order)) is not None:
            self.grant_where_best(waiting)

    def _next(self, priority: int, tier: Tier, parties: list[Party], order: Order) -> Waiting | None:
        """The first that fits of the user who had the least; of equal users, by the order.

        A party that has nothing that fits is taken out: what is free only shrinks during a plan.
        """
        room = self._room(tier)
        if not room:
            return None
        for _, equals in groupby(self._ranked(parties), key=itemgetter(0)):
            heads: list[Key] = []
            for _, party in equals:
                head = self._head(priority, party, tier.parties[party], room, order)
                if head is None:
                    parties.remove(party)
                else:
                    heads.append(head)
            if heads:
                return self.line[min(heads)[-1]]
        return None

    def _room(self, tier: Tier) -> Room:
        """What fits now, for each family of a tier that anything of could fit."""
        room: Room = {}
        for family, least in tier.least.items():
            steps = self.board.steps(family) if self._may(family) else ()
            if any(amount >= least for _, amount in steps):
                room[id(family)] = steps
        return room

    def _head(
        self, priority: int, party: Party, families: dict[Family, Queues], room: Room, order: Order
    ) -> Key | None:
        best: Key | None = None
        for family, queues in families.items():
            steps = room.get(id(family))
            if steps is None or of_user(family.kind, party.user) in self.closed:
                continue
            left = self._left(priority, party, family)
            if party.user in self.board.unbelieved:
                steps = [step for step in steps if step[0] == inf]  # not on devices that are held for another
            for search in order(party, queues) if left > 0 else ():
                for window, amount in steps:
                    found = search.first(min(amount, left), self.now, window, self.grants)
                    if found is not None and (best is None or found < best):
                        best = found
        return best

    def _left(self, priority: int, party: Party, family: Family) -> int:
        packed = self.board.share_of(family)
        share = family.share or packed is not None
        if share and self.ledger.crowded(party.user):
            return 0
        if not self.ledger.limits:
            return UNLIMITED
        total = (self.board.least_memory(family) or 0) if share else None
        left = self.ledger.left(party, priority, total)
        return left if packed is None else left // packed

    def grant_where_best(self, waiting: Waiting) -> None:
        request = self.board.believed(waiting)
        slots = place(self.board, waiting.kind, request, spread=waiting.packed)
        if slots is None:
            raise AssertionError(f"request {waiting.id} was found to fit and then did not")
        self.grant(waiting, slots)

    def grant(self, waiting: Waiting, slots: list[Slot]) -> None:
        self.running.add(waiting)
        if not slots:
            self.grants[waiting.id] = Grant(waiting.id, (), "", None)
            return
        request = self.board.as_seen(waiting).request
        outsiders = slots[0].outsiders
        self.board.take(slots, request)
        share, total = request.memory is not None, slots[0].device.memory_total
        parts = parts_of(request.gpus, request.memory, total)
        self.ledger.add(party_of(waiting), request.priority, parts, share)
        weight = min(1.0, (request.memory or 0) / total) if share and total else float(len(slots))
        self.standing.charge(waiting.user, weight)
        devices = tuple(slot.device.uuid for slot in slots)
        self.grants[waiting.id] = Grant(
            waiting.id, devices, slots[0].host, request.memory, request.max_leases, waiting.shape, outsiders,
            waiting.packed,
        )  # fmt: skip
        self.granted.append(self.board.as_seen(waiting))


class _Refused:
    """Amounts that nothing is held for; who comes later and wants as much of the same need not be tried."""

    def __init__(self) -> None:
        self.least: dict[int, int] = {}  # by the identity of a family

    def add(self, size: int, family: Family) -> None:
        self.least[id(family)] = min(size, self.least.get(id(family), size))

    def covers(self, size: int, family: Family) -> bool:
        return size >= self.least.get(id(family), size + 1)
