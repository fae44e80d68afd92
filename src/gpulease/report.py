"""PURE: the document that `status --json` prints and `gpulease.status()` returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpulease.model import Device, Sample
from gpulease.states import computing, state_of


def document(
    sample: Sample,
    host: str,
    devices: Sequence[Device] | None = None,
    memory: tuple[int | None, int | None] = (None, None),
) -> dict[str, Any]:
    """The sample as plain values; `devices` narrows what is shown."""
    shown = sample.devices if devices is None else devices
    return {
        "host": host,
        "host_memory_total": memory[0],
        "host_memory_available": memory[1],
        "simulated": sample.simulated,
        "driver": sample.driver,
        "time": sample.time,
        "sample_age": 0.0,
        "trouble": None,
        "broker": None,
        "devices": [_device(device) for device in shown],
        "leases": [],
        "line": [],
        "line_length": 0,
        "passed_by": [],
    }


def _device(device: Device) -> dict[str, Any]:
    fields = device._asdict()
    processes = fields.pop("processes")
    return {
        **fields,
        "label": device.label,
        "state": state_of(device),
        "note": _note(device),
        "outside": [process.pid for process in computing(device)],
        "leases": [],
        "processes": None if processes is None else [process.shown(None) for process in processes],
    }


def _note(device: Device) -> str | None:
    """What the driver does not tell, where that keeps the device from being free."""
    if device.lost is not None or device.processes is None or device.memory_used is not None:
        return None
    return "the driver does not tell how much of its memory is in use"
