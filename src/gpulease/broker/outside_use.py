"""Use of devices without a lease, in the events: once when it begins and once when it has ended.

Nobody is granted such a device, so that whoever waits, and whoever keeps the host, can see since when and for whom.
"""

from __future__ import annotations

from gpulease.broker.core_state import State
from gpulease.broker.turn import Turn
from gpulease.planner import device_state

GONE = 60.0  # seconds without it until it has ended: who comes and goes is one use

Use = tuple[str, str]  # device and user


def look(turn: Turn) -> None:
    """A sample came in. What is to be written is written apart: a full disk must keep nobody from the sample."""
    outside, uses = turn.state.outside, _uses(turn.state)
    for use in uses.keys() & outside.keys():
        outside.put(use, turn.now)
    if uses.keys() - outside.keys() or _over(turn):
        turn.alarm(0.0, "outside")


def write(turn: Turn) -> None:
    outside = turn.state.outside
    for use, pid in _uses(turn.state).items():
        if use not in outside:
            outside.put(use, turn.now)
            _record(turn, "outside", use, pid, "uses it without a lease" if pid else "memory in use by nobody visible")
    for use in _over(turn):
        outside.drop(use)
        _record(turn, "outside-ended", use, None, "no longer uses it without a lease")


def _over(turn: Turn) -> list[Use]:
    return [use for use, last in turn.state.outside.items() if turn.now - last >= GONE]


def _uses(state: State) -> dict[Use, int | None]:
    """Each with the first of its processes; without one where only memory is in use."""
    devices, leases = state.devices.values(), state.leases.values()
    seen = state.views()
    found: dict[Use, int | None] = {}
    for device in devices:
        on = [lease for lease in leases if device.uuid in lease.devices]
        judged = device_state(device, on, seen[device.uuid], state.policy)
        if judged.state != "outside" or (judged.note and not judged.pids):
            continue
        users = {process.pid: process.user or "" for process in device.processes or ()}
        for pid in judged.pids or (None,):
            found.setdefault((device.uuid, users.get(pid or 0, "")), pid)
    return found


def _record(turn: Turn, what: str, use: Use, pid: int | None, why: str) -> None:
    uuid, user = use
    turn.state.record(turn.now, what, user=user, pid=pid, devices=turn.state.labels([uuid]), why=why)
