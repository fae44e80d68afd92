"""`plan`: who gets which devices now, which are held, and why everybody else waits.

For each priority in turn: first who has waited beyond the longest wait, oldest first; then who is overdue,
by fair share and the moment their patience ended; then everybody, by fair share and arrival. Whoever
fits is granted; the first few of the overdue that do not fit have devices held for them.
Pure: no clock, no I/O, no randomness, and neither the line nor any other argument is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from itertools import groupby, islice
from math import inf

from gpulease.model import Device, Lease, Waiting
from gpulease.planner.board import Board, Slot
from gpulease.planner.fairness import Standing, Usage
from gpulease.planner.holds import Hold, hold
from gpulease.planner.limits import Ledger
from gpulease.planner.line import Family, Line, Party, Queues, Tier, family_of, party_of, size_of
from gpulease.planner.placement import place
from gpulease.planner.policy import Policy
from gpulease.planner.queue import Bounds, Key, Queue
from gpulease.planner.result import Grant, Plan
from gpulease.planner.states import DeviceView

LOOKAHEAD = 32  # overdue requests, from the front, that a plan considers holding devices for
NOTHING: Mapping[str, str] = {}

Pick = Callable[[Queues], Queue]


def plan(
    devices: Iterable[Device],
    leases: Iterable[Lease],
    line: Line,
    policy: Policy,
    now: float,
    *,
    views: Mapping[str, DeviceView] | None = None,
    usage: Usage | None = None,
    closed: Mapping[str, str] = NOTHING,
) -> Plan:
    """Decide. `views` by UUID; `closed` by kind of request, each with the sentence why none of it starts."""
    decision = _Decision(tuple(devices), tuple(leases), line.under(policy), policy, now, views, usage, closed)
    decision.force()
    for priority in sorted(decision.line.tiers):
        decision.serve(priority)
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
        closed: Mapping[str, str],
    ) -> None:
        self.line = line
        self.policy = policy
        self.now = now
        self.closed = closed
        self.board = Board(devices, leases, views or {}, policy, now)
        if line.wide:
            self.board.spare()
        self.ledger = Ledger(leases, policy)
        self.by_uuid = {device.uuid: device for device in devices}
        self.standing = Standing(usage or {}, leases, self.by_uuid, policy, now)
        self.grants: dict[str, Grant] = {}
        self.holds: dict[str, Hold] = {}

    def result(self) -> Plan:
        return Plan(
            tuple(self.grants.values()),
            tuple(self.holds.values()),
            self.now,
            self.board,
            self.ledger,
            self.line,
            self.closed,
        )

    def force(self) -> None:
        for id in sorted(self.line.forced, key=lambda id: (self.line[id].since, id)):
            waiting = self.line[id]
            slots = place(self.board, waiting.kind, waiting.request, forced=True)
            if slots is not None:
                self.grant(waiting, slots)

    def serve(self, priority: int) -> None:
        tier = self.line.tiers[priority]
        self.settle_first(self._longest(tier))
        self.settle_first(self._overdue(tier))
        self.fill(priority, tier, lambda queues: queues.deadline, self.now)
        self.fill(priority, tier, lambda queues: queues.arrival, inf)

    def _longest(self, tier: Tier) -> Iterator[str]:
        for key, entry in tier.oldest:
            if key[0] > self.now - self.policy.longest_wait:
                return
            yield entry.id

    def _overdue(self, tier: Tier) -> Iterator[str]:
        for party in sorted(tier.parties, key=lambda party: (self.standing.of(party.user), party)):
            for key, entry in merge(*(queues.deadline for queues in tier.parties[party].values())):
                if key[0] > self.now:
                    break
                yield entry.id

    def settle_first(self, ids: Iterator[str]) -> None:
        """Serve the first of the overdue one by one: a grant, or a hold while holds are left."""
        refused: set[tuple[Family, int]] = set()
        for id in islice(ids, LOOKAHEAD):
            if len(self.holds) >= self.policy.max_holds:
                return
            waiting = self.line[id]
            shape = family_of(waiting.kind, waiting.request), size_of(waiting.request)
            if id in self.grants or id in self.holds or shape in refused or not self.may_start(waiting):
                continue
            slots = place(self.board, waiting.kind, waiting.request)
            if slots is not None:
                self.grant(waiting, slots)
            elif not self.keep(waiting, *shape):
                # A later one of this shape has waited less, so nothing is held for it either.
                refused.add(shape)

    def keep(self, waiting: Waiting, family: Family, size: int) -> bool:
        kept = hold(self.board, waiting, self.now) if self.board.ever(family, size) else None
        if kept is not None:
            self.holds[waiting.id] = kept
        return kept is not None

    def may_start(self, waiting: Waiting) -> bool:
        request = waiting.request
        if waiting.kind in self.closed or (request.not_before or -inf) > self.now:
            return False
        gpus, share = request.gpus, request.memory is not None
        return self.ledger.reached(party_of(waiting), request.priority, gpus, share) is None

    def fill(self, priority: int, tier: Tier, pick: Pick, until: float) -> None:
        """Grant whoever fits, in order, until nobody does."""
        while (waiting := self._next(priority, tier, pick, until)) is not None:
            slots = place(self.board, waiting.kind, waiting.request)
            if slots is None:
                raise AssertionError(f"request {waiting.id} was found to fit and then did not")
            self.grant(waiting, slots)

    def _next(self, priority: int, tier: Tier, pick: Pick, until: float) -> Waiting | None:
        """The first that fits of the user who had the least; of equal users, who came first."""
        ranked = sorted((self.standing.of(party.user), party) for party in tier.parties)
        for _, equals in groupby(ranked, key=lambda pair: pair[0]):
            found = [self._head(priority, party, tier.parties[party], pick, until) for _, party in equals]
            heads = [head for head in found if head is not None]
            if heads:
                return self.line[min(heads)[1]]
        return None

    def _head(
        self, priority: int, party: Party, families: dict[Family, Queues], pick: Pick, until: float
    ) -> Key | None:
        best: Key | None = None
        for family, queues in families.items():
            steps = () if family.kind in self.closed else self.board.steps(family)
            left = self.ledger.left(party, priority, family.share) if steps else 0
            if left <= 0:
                continue
            for window, amount in steps:
                most = amount if family.share else min(amount, left)
                found = pick(queues).first(Bounds(until, most, self.now, window), self.grants)
                if found is not None and (best is None or found[0] < best):
                    best = found[0]
        return best

    def grant(self, waiting: Waiting, slots: list[Slot]) -> None:
        request = waiting.request
        self.board.take(slots, request)
        share = request.memory is not None
        self.ledger.add(party_of(waiting), request.priority, request.gpus, share)
        total = slots[0].device.memory_total
        weight = min(1.0, (request.memory or 0) / total) if share and total else float(len(slots))
        self.standing.charge(waiting.user, weight)
        devices = tuple(slot.device.uuid for slot in slots)
        self.grants[waiting.id] = Grant(waiting.id, devices, slots[0].host, request.memory)
