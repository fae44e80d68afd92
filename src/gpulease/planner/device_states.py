"""What a device is to the planner: free, leased, shared, or out of reach and why.

The broker supplies facts, one `DeviceView` for each device; this file alone judges them. What is not
known counts as held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpulease.model.values import Device, Lease
from gpulease.planner.policy import Policy

FREE = "free"
LEASED = "leased"
SHARED = "shared"
OUTSIDE = "outside"
DRAINING = "draining"
EXCLUDED = "excluded"
LOST = "lost"
THROUGH = "through "  # before another broker: it is not the holder itself


class DeviceView(NamedTuple):
    """What the broker knows of a device beside the sample. With no view nothing is explained."""

    host: str = ""
    explained: frozenset[int] = frozenset()  # pids seen on it that belong to the tree of a live lease's owner
    draining: tuple[int, ...] = ()  # pids that outlived the lease they belonged to
    excluded: str | None = None  # the note of whoever took it out of service; may be empty
    last_used: float = 0.0  # when the last lease on it ended
    placeholders: frozenset[int] = frozenset()  # pids of the broker's own, which only show it as taken to others
    neighbour: str | None = None  # which other tool or broker holds it, and for whom


class DeviceState(NamedTuple):
    state: str
    pids: tuple[int, ...] = ()  # outside or draining
    unexplained: int | None = None  # bytes in use that nobody explains
    note: str | None = None  # why it is excluded or lost, or what could not be read
    neighbour: str | None = None  # which other tool holds it, or may: also if it is leased


def device_state(
    device: Device, leases: Sequence[Lease], view: DeviceView | None = None, policy: Policy | None = None
) -> DeviceState:
    """Judge one device; `leases` are those on it."""
    view = view or DeviceView()
    if device.lost is not None:
        return DeviceState(LOST, note=device.lost)
    if view.excluded is not None:
        return DeviceState(EXCLUDED, note=view.excluded)
    if view.draining:
        return DeviceState(DRAINING, pids=view.draining)
    judged = _outside(device, leases, view, policy or Policy()) or _held(leases)
    return judged._replace(neighbour=view.neighbour)


def held(neighbour: str) -> str:
    """By a tool, or through another broker."""
    return f"held {neighbour}" if neighbour.startswith(THROUGH) else f"held by {neighbour}"


def _held(leases: Sequence[Lease]) -> DeviceState:
    if not leases:
        return DeviceState(FREE)
    return DeviceState(SHARED if all(lease.memory is not None for lease in leases) else LEASED)


def _outside(device: Device, leases: Sequence[Lease], view: DeviceView, policy: Policy) -> DeviceState | None:
    if view.neighbour is not None and not leases:
        return DeviceState(OUTSIDE, note=held(view.neighbour))
    if device.processes is None:
        # On a leased device the list of processes adds nothing that a decision needs.
        return None if leases else DeviceState(OUTSIDE, note="its processes cannot be read")
    known = view.explained | view.placeholders
    pids = tuple(p.pid for p in device.processes if not p.graphics and p.pid not in known)
    if pids:
        return DeviceState(OUTSIDE, pids=pids)
    if device.memory_used is None:
        return None if leases else DeviceState(OUTSIDE, note="its memory in use cannot be read")
    unexplained = _unexplained(device, leases, device.memory_used)
    if unexplained > policy.unexplained_memory:
        return DeviceState(OUTSIDE, unexplained=unexplained)
    return None


def _unexplained(device: Device, leases: Sequence[Lease], used: int) -> int:
    processes = device.processes or ()
    if any(lease.memory is None for lease in leases) or any(p.memory is None for p in processes):
        return 0
    visible = sum(p.memory or 0 for p in processes)
    return max(0, used - visible - sum(lease.memory or 0 for lease in leases))
