"""PURE: what the broker knows of each device beside the sample: whose processes are whose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpulease.broker.core.events import ProcessKey
from gpulease.model.values import Device, Lease, Process
from gpulease.planner import DeviceView


class Ended(NamedTuple):
    """The last lease that ended on a device."""

    user: str
    time: float
    ticks: int  # the same moment in clock ticks since boot
    outsiders: tuple[ProcessKey, ...] = ()  # processes that were there before it
    holder: ProcessKey | None = None  # its process, if that lives and somebody else ended the lease


class Known(NamedTuple):
    """What is known of devices beside samples and leases, by UUID."""

    ended: Mapping[str, Ended]
    excluded: Mapping[str, str]  # with a note
    neighbours: Mapping[str, str]  # who holds it beside us
    placeholders: Mapping[ProcessKey, str]  # processes of the broker's own
    host: str = ""


def views(devices: Iterable[Device], leases: Iterable[Lease], known: Known) -> dict[str, DeviceView]:
    """A process belongs to a lease when it is on the lease's device and runs as the lease's user."""
    on: dict[str, list[Lease]] = {}
    for lease in leases:
        for uuid in lease.devices:
            on.setdefault(uuid, []).append(lease)
    return {device.uuid: _view(device, on.get(device.uuid, []), known) for device in devices}


def _view(device: Device, leases: list[Lease], known: Known) -> DeviceView:
    ended, excluded = known.ended.get(device.uuid), known.excluded.get(device.uuid)
    neighbour = known.neighbours.get(device.uuid)
    if not device.processes and excluded is None and ended is None and neighbour is None:
        return DeviceView(known.host)
    present = [process for process in device.processes or () if not process.graphics]
    ours = frozenset(one.pid for one in present if (one.pid, one.start_time) in known.placeholders)
    computing = [process for process in present if process.pid not in ours]
    users = {lease.owner.user for lease in leases}
    outsiders = {key for lease in leases for key in lease.outsiders}
    explained = frozenset(p.pid for p in computing if p.user in users and (p.pid, p.start_time) not in outsiders)
    rest = [process for process in computing if process.pid not in explained]
    draining = () if ended is None else tuple(process.pid for process in rest if outlived(process, ended))
    if ended is not None and ended.holder is not None and not leases:
        draining = (*(pid for pid in draining if pid != ended.holder[0]), ended.holder[0])
    last_used = 0.0 if ended is None else ended.time
    return DeviceView(known.host, explained, draining, excluded, last_used, ours, neighbour)


def outlived(process: Process, ended: Ended) -> bool:
    """Whether a process was there before the lease ended, and so belonged to it."""
    if process.user != ended.user or (process.pid, process.start_time) in ended.outsiders:
        return False
    return process.start_time is None or process.start_time <= ended.ticks
