"""Which of the devices that fit: shares pack so that whole devices stay whole, several keep together.

Not here: whether somebody may have any device at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpulease.model.values import Request
from gpulease.planner.board import Board, Slot, matches
from gpulease.planner.device_states import OUTSIDE
from gpulease.planner.line import family_of

# A difference below these is noise, and does not decide.
UTILIZATION_STEP = 20  # percent
MEMORY_STEP = 256 << 20  # bytes


def place(board: Board, kind: str, request: Request, forced: bool = False, spread: bool = False) -> list[Slot] | None:
    """The best devices for a request, or None when it does not fit now. `spread`: a share where fewest leases are."""
    hosts = board.matching(family_of(kind, request))
    window = inf if request.duration is None else request.duration
    open_hosts = [[s for s in slots if forced or s.window >= window] for slots in hosts]
    for pick in _by_preference(request, open_hosts):
        share = request.memory is not None
        found = _share(board, pick, request, forced, spread) if share else _whole(board, pick, request)
        if found is not None:
            return found
    return None


def _by_preference(request: Request, hosts: list[list[Slot]]) -> list[list[list[Slot]]]:
    """The candidates under the first name, the second, and so on; at last under any of them."""
    if len(request.models) < 2:
        return [hosts]
    picks = [[[s for s in slots if matches(model, s.device)] for slots in hosts] for model in request.models]
    return [*picks, hosts]


def _share(board: Board, hosts: list[list[Slot]], request: Request, forced: bool, spread: bool) -> list[Slot] | None:
    best: tuple[tuple[float, ...], Slot] | None = None
    for slots in hosts:
        spared = _spared(board, slots)
        since = board.oldest(slots[0].host) if slots else inf
        for order, slot in enumerate(slots):
            space = board.space(slot, request.max_leases, forced, request.beside_outside)
            if space < (request.memory or 0):
                continue
            # Of equal fits, where somebody has run longest and should stay longest anyway. Of devices that nobody
            # leases, what little is in use on one makes it no better fit.
            tight = slot.count if spread else slot.most if slot.whole else space
            outside = slot.state.state == OUTSIDE
            rank = _rank(slot, request)
            key = (slot.held_for is not None, spared, outside, tight, since, rank, *_comfort(slot), order)
            if best is None or key < best[0]:
                best = key, slot
    return None if best is None else [best[1]]


def _whole(board: Board, hosts: list[list[Slot]], request: Request) -> list[Slot] | None:
    """On the fullest host that suffices and is not spared, so that others stay whole for wide requests."""
    best: tuple[tuple[float, ...], list[Slot]] | None = None
    for slots in hosts:
        idle = [slot for slot in slots if slot.whole]
        if len(idle) < request.gpus:
            continue
        held = sum(slot.held_for is not None for slot in idle)
        key = (held, _spared(board, slots), sum(slot.unused for slot in board.hosts[slots[0].host]))
        if best is None or key < best[0]:
            best = key, idle
    return None if best is None else _together(best[1], request)


def _spared(board: Board, slots: Sequence[Slot]) -> bool:
    return bool(slots) and slots[0].host == board.spared


def _together(idle: Sequence[Slot], request: Request) -> list[Slot]:
    """The first that was named, or the idlest; several of the smallest group of neighbours that has them all."""
    gpus = request.gpus
    order = sorted(
        range(len(idle)),
        key=lambda at: (idle[at].held_for is not None, _rank(idle[at], request), *_comfort(idle[at]), at),
    )
    ranked = [idle[at] for at in order]
    if gpus > 1:
        ranked = _neighbours(ranked, gpus)
    return sorted(ranked[:gpus], key=lambda slot: (slot.device.index, slot.device.instance or 0))


def _neighbours(ranked: list[Slot], gpus: int) -> list[Slot]:
    groups: dict[tuple[bool, str], list[Slot]] = {}
    for slot in ranked:
        if slot.device.group is not None:
            groups.setdefault((slot.held_for is not None, slot.device.group), []).append(slot)
    enough = [group for group in groups.values() if len(group) >= gpus]
    if enough:
        return min(enough, key=len)
    # No group has them all: fill from the largest groups, so that as few as possible take part.
    sizes = {slot.device.uuid: len(group) for group in groups.values() for slot in group}
    names = {slot.device.uuid: slot.device.group or "" for slot in ranked}
    return sorted(
        ranked,
        key=lambda slot: (
            slot.held_for is not None,
            -sizes.get(slot.device.uuid, 0),
            names[slot.device.uuid],
        ),
    )


def _rank(slot: Slot, request: Request) -> int:
    """Devices that were named are named in order of preference, as models are."""
    return request.devices.index(slot.device.uuid) if slot.device.uuid in request.devices else 0


def _comfort(slot: Slot) -> tuple[float, float, float, float]:
    """How much it is used, however little that is, then heat, then how lately it was leased."""
    device = slot.device
    used = inf if device.memory_used is None else device.memory_used // MEMORY_STEP
    temperature = inf if device.temperature is None else device.temperature
    return (busyness(device.utilization), used, temperature, slot.view.last_used)


def busyness(utilization: int | None) -> float:
    """In steps; an unreadable value counts as the busiest."""
    return inf if utilization is None else utilization // UTILIZATION_STEP


def fits_if_unheld(board: Board, hosts: list[list[Slot]], request: Request) -> bool:
    """Whether a request would fit now, on the devices that match, if none were held for anybody."""
    for slots in hosts:
        if request.memory is None and sum(slot.whole for slot in slots) >= request.gpus:
            return True
        if request.memory is not None and any(
            board.space(slot, request.max_leases, beside=request.beside_outside) >= request.memory for slot in slots
        ):
            return True
    return False
