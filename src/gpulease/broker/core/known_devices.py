"""Devices as they were seen since the machine was started, so that one that the driver loses keeps its name and holder.

A driver that is asked for the first time after it lost a GPU tells only that there is one: neither UUID nor name.
"""

from __future__ import annotations

from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.model.values import Device, Sample

NAMELESS = "lost-"  # begins the UUID of a device that the probe has never seen well
KEPT = ("index", "uuid", "name", "vendor", "instance", "memory_total", "pci_bus_id", "group")


def identified(state: State, sample: Sample) -> Sample:
    """The sample, with what is known of devices that the driver lost."""
    if not any(device.uuid.startswith(NAMELESS) for device in sample.devices):
        return sample
    found: list[Device] = []
    for device in sample.devices:
        known = [one for one in state.devices.known.values() if one.index == device.index]
        lost = device.uuid.startswith(NAMELESS) and known
        found += [one._replace(lost=device.lost, processes=None) for one in known] if lost else [device]
    return sample._replace(devices=tuple(found))


def update(turn: Turn) -> None:
    """What is to be written is written apart: a full disk must keep nobody from the sample."""
    if _current(turn.state) != dict(turn.state.devices.known):
        turn.alarm(0.0, "known-devices")


def write(turn: Turn) -> None:
    state, seen = turn.state, _current(turn.state)
    if seen != dict(state.devices.known):
        rows = {uuid: {name: getattr(one, name) for name in KEPT} for uuid, one in seen.items()}
        state.store.write("facts", "devices", {"boot_id": state.about.boot_id, "devices": rows})
        state.devices.known.replace(seen)


def load(state: State, fact: dict[str, object]) -> None:
    """After a reboot another GPU may have that index."""
    rows = fact.get("devices")
    if fact.get("boot_id") == state.about.boot_id and isinstance(rows, dict):
        state.devices.known.fill({uuid: Device(**row, memory_used=None) for uuid, row in rows.items()})


def _current(state: State) -> dict[str, Device]:
    """By UUID: what is there, and of what is lost what was known."""
    found: dict[str, Device] = {}
    for uuid, device in state.devices.by_uuid.items():
        if device.lost is None:
            found[uuid] = Device(**{name: getattr(device, name) for name in KEPT})
        elif uuid in state.devices.known:
            found[uuid] = state.devices.known[uuid]
    return found
