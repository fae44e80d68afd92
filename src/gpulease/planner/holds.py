"""Devices kept free for a request that has waited too long, and the estimate of when they will be.

What a lease declared is believed until it is exceeded; what declared nothing is expected to go on as
long as it has gone on already, which is what heavy-tailed run times do. A request past the policy's
longest wait is held for without an estimate: on the devices that nobody entered for the longest.
Holding keeps others from entering, so that choice stays, and the wait ends when the last one leaves.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from gpulease.model.values import Lease, Request, Waiting
from gpulease.planner.board import Board, Slot
from gpulease.planner.device_states import DRAINING, FREE, LEASED, SHARED
from gpulease.planner.lengths import LATEST, Lengths
from gpulease.planner.line import family_of
from gpulease.planner.policy import Policy


class Hold(NamedTuple):
    """Devices kept for a request as they fall free."""

    id: str
    devices: tuple[str, ...]
    host: str
    expected: float | None  # when all should be free; None when nobody can say


class Choice(NamedTuple):
    delay: float
    slots: list[Slot]


def remaining(lease: Lease, lengths: Lengths, policy: Policy) -> float:
    """How long a lease should go on: as declared, else at the latest by the run times of similar ones."""
    now = lengths.now
    if lease.until is not None:
        return max(0.0, lease.until - now)
    age = max(0.0, now - lease.since)
    if lease.duration is not None and lease.duration > age:
        return lease.duration - age
    length = lengths.of_lease(lease)
    if length is not None:
        return max(policy.estimate_floor, length.after(age, LATEST))
    return max(policy.estimate_floor, policy.estimate_factor * age)


def declared(lease: Lease, now: float) -> bool:
    """Whether somebody said when a lease ends, and it has not proved wrong."""
    return lease.until is not None or (lease.duration is not None and lease.duration > now - lease.since)


def worthwhile(board: Board) -> bool:
    """Whether anything could be held before the longest wait: not on guesses, if the policy says so."""
    if board.policy.max_holds < 1:
        return False
    if board.policy.hold_ratio_guessed > 0:
        return True
    return any(declared(lease, board.now) for slot in board.slots for lease in slot.leases)


def hold(board: Board, waiting: Waiting, now: float) -> Hold | None:
    """Keep devices for a request that does not fit, if its wait so far is worth that."""
    policy = board.policy
    waited = now - waiting.since
    waiting = board.as_seen(waiting)
    request = waiting.request
    if waited >= policy.longest_wait:
        choice = _least_entered(board, waiting)
        return None if choice is None else _keep(board, waiting, choice, now, None)
    choice = _soonest(board, waiting.kind, request, now)
    if choice is None:
        return None
    firm = all(declared(lease, now) for slot in choice.slots for lease in slot.leases)
    if choice.delay > (policy.hold_ratio if firm else policy.hold_ratio_guessed) * waited:
        return None
    return _keep(board, waiting, choice, now, now + choice.delay)


def _keep(board: Board, waiting: Waiting, choice: Choice, now: float, expected: float | None) -> Hold:
    # Without a time that can be trusted nobody may enter, however short; see the module's text.
    window = -inf if expected is None else expected - now
    board.hold(choice.slots, waiting.id, window)
    devices = tuple(slot.device.uuid for slot in choice.slots)
    return Hold(waiting.id, devices, choice.slots[0].host, expected)


def _soonest(board: Board, kind: str, request: Request, now: float) -> Choice | None:
    best: Choice | None = None
    for slots in board.matching(family_of(kind, request)):
        delays = [(_delay(board, slot, request, now), at) for at, slot in enumerate(slots)]
        best = _better(best, slots, delays, request.gpus)
    return best


def _least_entered(board: Board, waiting: Waiting) -> Choice | None:
    best: Choice | None = None
    for slots in board.matching(family_of(waiting.kind, waiting.request)):
        wide = [slot for slot in slots if slot.most >= (waiting.request.memory or 0)]
        entered = [(_last_entered(slot), at) for at, slot in enumerate(wide)]
        best = _better(best, wide, entered, waiting.request.gpus)
    return best


def _better(best: Choice | None, slots: list[Slot], ranks: list[tuple[float, int]], gpus: int) -> Choice | None:
    chosen = sorted(rank for rank in ranks if rank[0] < inf)[:gpus]
    if len(chosen) < gpus or (best is not None and chosen[-1][0] >= best.delay):
        return best
    return Choice(chosen[-1][0], [slots[at] for _, at in chosen])


def _last_entered(slot: Slot) -> float:
    if slot.held_for is not None or slot.state.neighbour:
        return inf
    if slot.state.state not in (FREE, LEASED, SHARED, DRAINING):
        return inf
    if slot.count > len(slot.leases):
        return inf  # granted a moment ago by this plan
    return max((lease.since for lease in slot.leases), default=-inf)


def _delay(board: Board, slot: Slot, request: Request, now: float) -> float:
    policy = board.policy
    if slot.held_for is not None or slot.state.neighbour or slot.count > len(slot.leases):
        return inf
    if slot.state.state == DRAINING:
        return policy.estimate_floor
    if slot.state.state not in (FREE, LEASED, SHARED):
        return inf
    ends = _ends(slot, board)
    if request.memory is None:
        return ends[-1][0] if ends else 0.0
    return _share_delay(board, slot, request, ends)


def _ends(slot: Slot, board: Board) -> list[tuple[float, int]]:
    """How long each lease here should go on, with its memory, soonest first; worked out once in a plan."""
    if slot.ends is None:
        slot.ends = sorted((remaining(lease, board.lengths, board.policy), lease.memory or 0) for lease in slot.leases)
    return slot.ends


def _share_delay(board: Board, slot: Slot, request: Request, ends: list[tuple[float, int]]) -> float:
    """When enough leases have gone that the share fits; what is measured beyond them goes with the last."""
    wanted = request.memory or 0
    if slot.most < wanted:
        return inf
    if not ends or board.space(slot, request.max_leases, beside=request.beside_outside) >= wanted:
        return 0.0
    free = slot.most - slot.taken
    for delay, memory in ends:
        free += memory
        if memory and free >= wanted:
            return delay
    return ends[-1][0]
