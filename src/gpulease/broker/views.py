"""PURE: what the broker knows of each device beside the sample: whose processes are whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpulease.model import Device, Lease, Process
from gpulease.planner import DeviceView


class Ended(NamedTuple):
    """The last lease that ended on a device."""

    user: str
    time: float
    ticks: int  # the same moment in clock ticks since boot


def views(
    devices: Iterable[Device],
    leases: Iterable[Lease],
    ended: Mapping[str, Ended],
    excluded: Mapping[str, str],
    host: str = "",
) -> dict[str, DeviceView]:
    """A process belongs to a lease when it is on the lease's device and runs as the lease's user."""
    users: dict[str, set[str]] = {}
    for lease in leases:
        for uuid in lease.devices:
            users.setdefault(uuid, set()).add(lease.owner.user)
    return {
        device.uuid: _view(
            device, users.get(device.uuid, set()), ended.get(device.uuid), excluded.get(device.uuid), host
        )
        for device in devices
    }


def _view(device: Device, users: set[str], ended: Ended | None, excluded: str | None, host: str) -> DeviceView:
    if not device.processes and excluded is None and ended is None:
        return DeviceView(host)
    computing = [process for process in device.processes or () if not process.graphics]
    explained = frozenset(process.pid for process in computing if process.user in users)
    rest = [process for process in computing if process.pid not in explained]
    draining = () if ended is None else tuple(process.pid for process in rest if outlived(process, ended))
    return DeviceView(host, explained, draining, excluded, 0.0 if ended is None else ended.time)


def outlived(process: Process, ended: Ended) -> bool:
    """Whether a process was there before the lease ended, and so belonged to it."""
    if process.user != ended.user:
        return False
    return process.start_time is None or process.start_time <= ended.ticks
