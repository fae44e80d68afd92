"""Use of devices without a lease, in the events: once when it begins and once when it has ended.

So is a device that is leased and that another tool, which hands out GPUs, gave to somebody too.

Nobody is granted such a device, so that whoever waits, and whoever keeps the host, can see since when and for whom.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpulease.broker.core import notices
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.model.values import Lease
from gpulease.planner import DeviceState, device_state
from gpulease.planner.device_states import THROUGH, held

ENDED_AFTER = 60.0  # seconds without it until it has ended: who comes and goes is one use

HELD_PREFIX = "held "  # and by which neighbour: in the place of a user
Use = tuple[str, str]  # device and user


def update(turn: Turn) -> dict[str, list[str]]:
    """A sample came in: the users of each device without a lease, "" for one whom nobody sees.

    What is to be written is written apart: a full disk must keep nobody from the sample.
    """
    outside, uses = turn.state.devices.outside, _uses(turn.state)
    for use in uses.keys() & outside.keys():
        outside.put(use, turn.now)
    if uses.keys() - outside.keys() or _ended(turn):
        turn.alarm(0.0, "outside")
    found: dict[str, list[str]] = {}
    for uuid, user in uses:
        if not user.startswith(HELD_PREFIX):
            found.setdefault(uuid, []).append(user)
    return found


def write(turn: Turn) -> None:
    outside = turn.state.devices.outside
    for use, pid in _uses(turn.state).items():
        if use not in outside:
            outside.put(use, turn.now)
            _record(turn, "outside", use, pid, _why(use, pid) + _leased_to(turn.state, use))
            if not use[1].startswith(HELD_PREFIX):
                notices.device_used_by_others(turn, use[0], use[1], pid)
    for use in _ended(turn):
        outside.drop(use)
        ended = (
            f"no longer leased and {use[1]} too"
            if use[1].startswith(HELD_PREFIX)
            else "no longer uses it without a lease"
        )
        _record(turn, "outside-ended", use, None, ended)


def _ended(turn: Turn) -> list[Use]:
    return [use for use, last in turn.state.devices.outside.items() if turn.now - last >= ENDED_AFTER]


def _uses(state: State) -> dict[Use, int | None]:
    """Each with the first of its processes; without one where only memory is in use."""
    devices, leases = state.devices.by_uuid.values(), state.requests.leases.values()
    seen = state.views()
    found: dict[Use, int | None] = {}
    for device in devices:
        on = [lease for lease in leases if device.uuid in lease.devices]
        judged = device_state(device, on, seen[device.uuid], state.policy)
        if (neighbour := colliding(state, judged, on)) is not None:
            found[device.uuid, held(neighbour)] = None
        if judged.state != "outside" or (judged.note and not judged.pids):
            continue
        users = {process.pid: process.user or "" for process in device.processes or ()}
        for pid in judged.pids or (None,):
            found.setdefault((device.uuid, users.get(pid or 0, "")), pid)
    return found


def colliding(state: State, judged: DeviceState, on: Sequence[Lease]) -> str | None:
    """The neighbour that gave a leased device to somebody too; not one that cannot be asked what it holds."""
    if not on or judged.neighbour is None:
        return None
    if judged.neighbour.startswith(THROUGH):
        return judged.neighbour
    candidates = state.devices.neighbours_shown.items()
    named = (name for name, shown in candidates if judged.neighbour.startswith(name) and not shown.get("trouble"))
    return next(named, None)


def _why(use: Use, pid: int | None) -> str:
    if use[1].startswith(HELD_PREFIX):
        return f"it is leased, and {use[1]} too"
    return "uses it without a lease" if pid else "memory in use by nobody visible"


def _leased_to(state: State, use: Use) -> str:
    users = sorted({lease.owner.user for lease in state.requests.leases.values() if use[0] in lease.devices})
    return f", and it is leased to {', '.join(users)}" if users and not use[1].startswith(HELD_PREFIX) else ""


def _record(turn: Turn, what: str, use: Use, pid: int | None, why: str) -> None:
    uuid, user = use
    user = "" if user.startswith(HELD_PREFIX) else user
    turn.state.record(turn.now, what, user=user, pid=pid, devices=turn.state.devices.labels([uuid]), why=why)
