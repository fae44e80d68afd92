"""Why a request waits: the one reason, worked out from the board that a plan left behind, and the table behind it.

On demand: of a hundred thousand that wait, few are looked at. The table says device by device why a
request does not have it: `gpulease explain` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from gpulease.model.devices import INSTANCES, NAMED
from gpulease.model.quantities import span_text
from gpulease.model.values import Cause, Lease, Request, Waiting
from gpulease.planner import reasons
from gpulease.planner.board import Board, RunningCounts, Slot, matches, refusal
from gpulease.planner.device_states import DRAINING, EXCLUDED, LOST, OUTSIDE, DeviceState, held
from gpulease.planner.forecast import OUT_OF_REACH, Forecast, KnownEnds, enforced_end
from gpulease.planner.holds import Hold
from gpulease.planner.limits import Ledger, Reached
from gpulease.planner.line import Family, family_of, size_of
from gpulease.planner.placement import fits_if_unheld
from gpulease.planner.reasons import Reason, Value, of_user, size_text


class Overtaken(NamedTuple):
    """Later requests that go before a request: shorter ones, for some seconds, and users who had less lately."""

    shorter: tuple[str, ...]
    turn: float
    fairer: tuple[str, ...] = ()


def why(
    waiting: Waiting,
    board: Board,
    ledger: Ledger,
    held: Hold | None,
    closed: Mapping[str, Cause],
    running: RunningCounts,
    now: float,
    expected: Callable[[], Forecast],
    overtaken: Callable[[Waiting], Overtaken | None],
) -> Reason:
    """The one reason that keeps a request waiting, the most lasting first."""
    waiting = board.as_seen(waiting)
    request = waiting.request
    if waiting.blocked is not None:
        return _given(reasons.BLOCKED, waiting.blocked)
    delayed = closed.get(of_user(waiting.kind, waiting.user))
    if delayed is not None:
        return _given(reasons.CLOSED, delayed)
    if waiting.kind in closed and not waiting.forced:
        return _given(reasons.CLOSED, closed[waiting.kind])
    if not waiting.forced and (request.not_before or -inf) > now:
        start = request.not_before or 0.0
        return Reason(reasons.NOT_YET, {"not_before": start, "seconds": start - now})
    family = family_of(waiting.kind, request)
    if request.gpus and not board.ever(family, size_of(request)):
        return _impossible(board, family, request)
    reached = ledger.stops(waiting, board) if request.gpus else None
    if reached is not None and not waiting.forced:
        return _quota(reached, request)
    if waiting.cap is not None and not running.left(waiting.cap) and not waiting.forced:
        fields: dict[str, Value] = {"most": running.caps[waiting.cap], "running": running.capped[waiting.cap]}
        return Reason(reasons.CAPPED, {**fields, **_when(expected(), now)})
    if not request.gpus:
        return Reason(reasons.NO_SLOT, {"most": running.slots, "running": running.without_device.total()})
    if held is not None:
        return _holding(board, held, now)
    found = _devices(board, waiting, board.matching(family), now, expected)
    passed = overtaken(waiting) if found.code in (reasons.BUSY, reasons.HELD) else None
    return found if passed is None else Reason(found.code, {**found.fields, **passed._asdict()})


def _given(code: str, cause: Cause) -> Reason:
    return Reason(code, {"text": cause.sentence, "short": cause.short})


def _amount(request: Request) -> dict[str, Value]:
    return {"gpus": request.gpus, "memory": request.memory, **({"mig": True} if request.mig else {})}


def _impossible(board: Board, family: Family, request: Request) -> Reason:
    hosts = board.matching(family)
    if request.memory is None:
        most = max((len(slots) for slots in hosts), default=0)
    else:
        most = max((slot.most for slots in hosts for slot in slots), default=0)
    here = Counter(slot.device.name for slot in board.slots)
    if request.models and not any(matches(model, slot.device) for model in request.models for slot in board.slots):
        named = tuple(f"{count} {name}" for name, count in sorted(here.items()))
        return Reason(
            reasons.IMPOSSIBLE, {**_amount(request), "most": 0, "hosts": 1, "models": request.models, "here": named}
        )
    instances = sum(len(slots) for slots in board.matching(family._replace(devices_wanted=INSTANCES)))
    more: dict[str, Value] = (
        {"instances": instances} if instances and not request.mig and family.devices_wanted != NAMED else {}
    )
    return Reason(reasons.IMPOSSIBLE, {**_amount(request), "most": most, "hosts": len(board.hosts), **more})


def _quota(reached: Reached, request: Request) -> Reason:
    fields: dict[str, Value] = {
        **(_amount(request) if reached.never else {}),
        "scope": reached.limit.scope,
        "name": reached.limit.name,
        "what": reached.what,
        "most": reached.most,
        "used": reached.used,
    }
    return Reason(reasons.OVER_LIMIT if reached.never else reasons.QUOTA, fields)


def _holding(board: Board, held: Hold, now: float) -> Reason:
    labels = tuple(slot.device.label for slot in board.slots if slot.device.uuid in held.devices)
    seconds = None if held.expected is None else held.expected - now
    fields: dict[str, Value] = {"devices": labels, "expected": held.expected, "seconds": seconds}
    return Reason(reasons.HOLDING, fields)


def _devices(
    board: Board, waiting: Waiting, hosts: list[list[Slot]], now: float, expected: Callable[[], Forecast]
) -> Reason:
    request = waiting.request
    slots = [slot for host in hosts for slot in host]
    if fits_if_unheld(board, hosts, request):
        holders = tuple(sorted({slot.held_for for slot in slots if slot.held_for is not None}))
        doubted = waiting.user if board.believed(waiting) != request else None
        return Reason(reasons.HELD, {**_amount(request), "holders": holders, "doubted": doubted})
    within = max((sum(_in_reach(slot, request) for slot in host) for host in hosts), default=0)
    if within < request.gpus:
        return _unavailable(slots, request)
    return _busy(board, waiting, hosts, now, expected())


def _in_reach(slot: Slot, request: Request) -> bool:
    reach = slot.state.state not in OUT_OF_REACH or (request.beside_outside and slot.outside_processes)
    return reach and slot.most >= (request.memory or 0)


def _unavailable(slots: list[Slot], request: Request) -> Reason:
    out = tuple(f"{slot.device.label} ({_why_out(slot.state)})" for slot in slots if slot.state.state in OUT_OF_REACH)
    return Reason(reasons.UNAVAILABLE, {**_amount(request), "out_of_reach": out})


def _why_out(judged: DeviceState) -> str:
    """Why somebody excluded it is in their own words."""
    return f"excluded: {judged.note}" if judged.state == "excluded" and judged.note else judged.state


def _busy(board: Board, waiting: Waiting, hosts: list[list[Slot]], now: float, expected: Forecast) -> Reason:
    request = waiting.request
    crowded: tuple[str, ...] = ()  # with room enough, and more leases than somebody wants
    if request.memory is None:
        free = max(sum(slot.whole for slot in slots) for slots in hosts)
    else:
        slots = [slot for host in hosts for slot in host]
        beside = request.beside_outside
        free = max(0, *(board.space(slot, request.max_leases, beside=beside) for slot in slots))
        crowded = tuple(slot.device.label for slot in slots if slot.room(beside=beside) >= request.memory)
    fields: dict[str, Value] = {
        **_amount(request),
        **({"packed": True} if waiting.packed else {}),
        "free": free,
        "crowded": crowded,
        "matching": max(len(slots) for slots in hosts),
        **_when(expected, now),
    }
    return Reason(reasons.BUSY, fields)


def _when(forecast: Forecast, now: float) -> dict[str, Value]:
    """When it should start, in seconds from now; by when it should have, before now."""
    start, sure = forecast.start, forecast.sure
    return {
        "expected": None if start is None else start.likely,
        "seconds": None if start is None else start.likely - now,
        "latest": None if start is None else start.latest - now,
        "missed": None if forecast.missed is None else now - forecast.missed,
        "sure": None if sure is None else sure.moment - now,
        "limits": () if sure is None else sure.leases,
    }


# -------------------------------------------------------------------- device by device

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


def verdicts(waiting: Waiting, board: Board, ledger: Ledger, now: float, known_ends: KnownEnds) -> tuple[Verdict, ...]:
    waiting = board.as_seen(waiting)
    reached = ledger.stops(waiting, board)
    hosts = board.matching(family_of(waiting.kind, waiting.request))
    matching = {slot.device.uuid for slots in hosts for slot in slots}
    return tuple(
        _of_other_kind(slot, waiting.request, matching)
        or _verdict(slot, waiting, board, reached is not None, now, known_ends)
        for slot in board.slots
    )


def _of_other_kind(slot: Slot, request: Request, matching: set[str]) -> Verdict | None:
    """It matches in all but that it is a MIG instance, or is none."""
    if slot.device.uuid in matching or refusal(request, slot.device) is not None:
        return None
    if request.mig:
        return _say(slot, "whole-gpu", "It is a whole GPU, and MIG instances are asked for.")
    return _say(slot, "mig-instance", "It is a MIG instance, and whole GPUs are asked for; see --mig.")


def _verdict(
    slot: Slot, waiting: Waiting, board: Board, over_quota: bool, now: float, known_ends: KnownEnds
) -> Verdict:
    request = waiting.request
    code = refusal(request, slot.device)
    if code is not None:
        return _say(slot, code, FILTERS[code])
    return (
        (None if request.beside_outside and slot.outside_processes else _out_of_reach(slot))
        or _leased(slot, request, now, known_ends)
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
        text = f"{size} of its memory is used by something that gpulease cannot see."
        return _say(slot, OUTSIDE, text, unexplained=state.unexplained)
    return _say(slot, OUTSIDE, f"gpulease cannot tell whether it is free: {state.note}.", note=state.note)


def _held_by_neighbour(slot: Slot) -> Verdict:
    neighbour = slot.state.neighbour or ""
    return _say(slot, OUTSIDE, f"H{held(neighbour)[1:]}.", neighbour=neighbour)


def _leased(slot: Slot, request: Request, now: float, known_ends: KnownEnds) -> Verdict | None:
    if slot.count == 0 or (request.memory is not None and slot.taken):
        return None
    if not slot.leases:
        return _say(slot, "leased", "It was granted to another request just now.")
    ends = {held.id: enforced_end(held, known_ends) for held in slot.leases}
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
    forecast = f"{span_text(left)} of it are left" if left > 0 else "which is over"
    return f"until it ends; it declared {span_text(lease.duration)}, {forecast}"


def _short(slot: Slot, request: Request, board: Board) -> Verdict | None:
    if request.memory is None:
        return None
    if slot.state.neighbour:
        return _held_by_neighbour(slot)
    if slot.crowded(request.max_leases, board.policy.max_leases):
        return _say(slot, "crowded", f"It has {slot.count} leases, the most allowed.", leases=slot.count)
    room = slot.room(beside=request.beside_outside)
    if room >= request.memory:
        return None
    if room < 0:
        return _say(slot, "memory", "None of its memory is free, or gpulease cannot read how much is.", free=room)
    return _say(slot, "memory", f"Only {size_text(room)} of its memory is free to share.", free=room)


def _reserved(slot: Slot, waiting: Waiting, board: Board) -> Verdict | None:
    if slot.held_for is None or slot.held_for == waiting.id:
        return None
    declared = board.believed(waiting).duration
    if declared is not None and declared <= slot.window:
        return None
    return _say(slot, "held", f"It is held for request {slot.held_for}.", holder=slot.held_for)
