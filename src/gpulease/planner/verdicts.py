"""Device by device, why a request does not have it: what `gpulease explain` shows.

The one reason of a waiting request is in why.py; this is the table behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from gpulease.model.quantities import span_text
from gpulease.model.values import Lease, Request, Waiting
from gpulease.planner.board import Board, Slot, refusal
from gpulease.planner.device_states import DRAINING, EXCLUDED, LOST, OUTSIDE, held
from gpulease.planner.forecast import Fates, enforced_end
from gpulease.planner.limits import Ledger
from gpulease.planner.line import family_of
from gpulease.planner.reasons import Value, size_text

SOME = 3  # leases that are named; a device may have very many
FILTERS = {
    "model": "Its model does not match.",
    "not-named": "It is not among the devices that were named.",
    "excluded-by-request": "The request excludes it.",
    "too-small": "It has less memory than the minimum asked for.",
}


class Verdict(NamedTuple):
    """What stands between a request and one device; the code `fits` when nothing does."""

    device: str  # UUID
    label: str
    host: str
    code: str
    sentence: str
    fields: Mapping[str, Value]


def verdicts(waiting: Waiting, board: Board, ledger: Ledger, now: float, fates: Fates) -> tuple[Verdict, ...]:
    waiting = board.as_seen(waiting)
    reached = ledger.stops(waiting, board)
    hosts = board.matching(family_of(waiting.kind, waiting.request))
    matching = {slot.device.uuid for slots in hosts for slot in slots}
    return tuple(
        _of_other_kind(slot, waiting.request, matching)
        or _verdict(slot, waiting, board, reached is not None, now, fates)
        for slot in board.slots
    )


def _of_other_kind(slot: Slot, request: Request, matching: set[str]) -> Verdict | None:
    """It matches in all but that it is a MIG instance, or is none."""
    if slot.device.uuid in matching or refusal(request, slot.device) is not None:
        return None
    if request.mig:
        return _say(slot, "whole-gpu", "It is a whole GPU, and MIG instances are asked for.")
    return _say(slot, "mig-instance", "It is a MIG instance, and whole GPUs are asked for; see --mig.")


def _verdict(slot: Slot, waiting: Waiting, board: Board, over_quota: bool, now: float, fates: Fates) -> Verdict:
    request = waiting.request
    code = refusal(request, slot.device)
    if code is not None:
        return _say(slot, code, FILTERS[code])
    return (
        (None if request.beside_outside and slot.strangers else _out_of_reach(slot))
        or _leased(slot, request, now, fates)
        or _short(slot, request, board)
        or _reserved(slot, waiting, board)
        or (_say(slot, "quota", "It is free, but a limit is reached.") if over_quota else None)
        or _say(slot, "fits", "It is free.")
    )


def _say(slot: Slot, code: str, sentence: str, **fields: Value) -> Verdict:
    return Verdict(slot.device.uuid, slot.device.label, slot.host, code, sentence, fields)


def _out_of_reach(slot: Slot) -> Verdict | None:
    state = slot.state
    if state.state == LOST:
        return _say(slot, LOST, f"The driver lost it: {state.note}.", note=state.note)
    if state.state == EXCLUDED:
        note = f": {state.note}" if state.note else ""
        return _say(slot, EXCLUDED, f"It is excluded{note}.", note=state.note)
    pids = ", ".join(str(pid) for pid in state.pids)
    if state.state == DRAINING:
        return _say(slot, DRAINING, f"Its lease ended, but pid {pids} is still on it.", pids=state.pids)
    if state.state != OUTSIDE:
        return None
    if state.neighbour and not slot.leases:
        return _held_by_neighbour(slot)
    if state.pids:
        users = sorted({one.user for one in slot.device.processes or () if one.pid in state.pids and one.user})
        who = f"{', '.join(users)} (pid {pids})" if users else f"pid {pids}"
        return _say(slot, OUTSIDE, f"Used outside of gpulease by {who}.", pids=state.pids)
    if state.unexplained is not None:
        size = size_text(state.unexplained)
        text = f"{size} of its memory is in use by nobody who can be seen."
        return _say(slot, OUTSIDE, text, unexplained=state.unexplained)
    return _say(slot, OUTSIDE, f"It cannot be known to be free: {state.note}.", note=state.note)


def _held_by_neighbour(slot: Slot) -> Verdict:
    neighbour = slot.state.neighbour or ""
    return _say(slot, OUTSIDE, f"H{held(neighbour)[1:]}.", neighbour=neighbour)


def _leased(slot: Slot, request: Request, now: float, fates: Fates) -> Verdict | None:
    if slot.count == 0 or (request.memory is not None and slot.taken):
        return None
    if not slot.leases:
        return _say(slot, "leased", "It was granted to another request just now.")
    ends = {held.id: enforced_end(held, fates) for held in slot.leases}
    lease = max(slot.leases, key=lambda lease: (ends[lease.id] is None, ends[lease.id] or 0.0, lease.id))
    users = ", ".join(sorted({held.owner.user for held in slot.leases}))
    ids = tuple(held.id for held in slot.leases)
    named = ", ".join(ids[:SOME]) + (", ..." if len(ids) > SOME else "")
    said = f"Leased to {users} ({named}) {_until(lease, ends[lease.id], now)}."
    return _say(slot, "leased", said, leases=ids, user=users, until=ends[lease.id])


def _until(lease: Lease, end: float | None, now: float) -> str:
    """How long a lease goes on: what the broker enforces, else what its owner declared, which nobody enforces."""
    if end is not None:
        sure = "" if lease.until == end and lease.kind == "reservation" else " at the most"
        return f"for another {span_text(max(0.0, end - now))}{sure}"
    if lease.duration is None:
        return "until it ends; it has no time limit"
    left = lease.since + lease.duration - now
    told = f"{span_text(left)} of it are left" if left > 0 else "which is over"
    return f"until it ends; it declared {span_text(lease.duration)}, {told}"


def _short(slot: Slot, request: Request, board: Board) -> Verdict | None:
    if request.memory is None:
        return None
    if slot.state.neighbour:
        return _held_by_neighbour(slot)
    if slot.crowded(request.max_leases, board.policy.max_leases):
        return _say(slot, "crowded", f"It has {slot.count} leases, and no more may come.", leases=slot.count)
    room = slot.room(beside=request.beside_outside)
    if room >= request.memory:
        return None
    if room < 0:
        return _say(slot, "memory", "How much of its memory is free cannot be known, or none is.", free=room)
    return _say(slot, "memory", f"Only {size_text(room)} of its memory is free to share.", free=room)


def _reserved(slot: Slot, waiting: Waiting, board: Board) -> Verdict | None:
    if slot.held_for is None or slot.held_for == waiting.id:
        return None
    declared = board.believed(waiting).duration
    if declared is not None and declared <= slot.window:
        return None
    return _say(slot, "held", f"It is held for request {slot.held_for}.", holder=slot.held_for)
