"""Working out the reason of one waiting request from the board that a plan left behind.

Lazily, for whoever asks: of a hundred thousand that wait, few are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from typing import NamedTuple

from gpulease.model.device_kinds import INSTANCES, NAMED
from gpulease.model.values import Cause, Request, Waiting
from gpulease.planner import reasons
from gpulease.planner.board import Board, Slot, matches
from gpulease.planner.device_states import DeviceState
from gpulease.planner.forecast import OUT_OF_REACH, Forecast
from gpulease.planner.holds import Hold
from gpulease.planner.limits import Ledger, Reached
from gpulease.planner.line import Family, family_of, size_of
from gpulease.planner.placement import fits_if_unheld
from gpulease.planner.reasons import Reason, Value, of_user
from gpulease.planner.running import RunningCounts


class Overtaken(NamedTuple):
    """Who came later and goes before a request: shorter ones, for so many seconds; users who had less lately."""

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
    reach = slot.state.state not in OUT_OF_REACH or (request.beside_outside and slot.strangers)
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


def _when(told: Forecast, now: float) -> dict[str, Value]:
    """When it should start, in seconds from now; by when it should have, before now."""
    start, sure = told.start, told.sure
    return {
        "expected": None if start is None else start.likely,
        "seconds": None if start is None else start.likely - now,
        "latest": None if start is None else start.latest - now,
        "missed": None if told.missed is None else now - told.missed,
        "sure": None if sure is None else sure.moment - now,
        "limits": () if sure is None else sure.leases,
    }
