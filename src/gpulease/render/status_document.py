"""PURE: the document that `status --json` prints and `gpulease.status()` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpulease.model.devices import computing, state_of
from gpulease.model.values import Device, Sample

KNOWN_BY_BROKER = ("state", "leases", "note", "holder", "outside", "instance", "label", "index")


def document(
    sample: Sample,
    host: str,
    devices: Sequence[Device] | None = None,
    memory: tuple[int | None, int | None] = (None, None),
    claims: Mapping[str, tuple[str, dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The sample as plain values; `devices` narrows what is shown; `claims`: those that a broker holds, and how."""
    shown, claims = sample.devices if devices is None else devices, claims or {}
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
        "devices": [_device(device, *claims.get(device.uuid, (None, None))) for device in shown],
        "leases": [],
        "line": [],
        "line_length": 0,
        "neighbours": {"gpulease": {"trouble": None, "holders": {uuid: one for uuid, (_, one) in claims.items()}}},
        "passed_by": [],
    }


def _device(device: Device, held: str | None = None, holder: dict[str, Any] | None = None) -> dict[str, Any]:
    fields = device._asdict()
    processes = fields.pop("processes")
    return {
        **fields,
        "label": device.label,
        "state": "outside" if held and state_of(device) == "free" else state_of(device),
        "note": f"held {held}" if held else _note(device),
        "holder": holder,
        "outside": [process.pid for process in computing(device)],
        "leases": [],
        "processes": None if processes is None else [process.shown(None) for process in processes],
    }


def with_unknown_leases(seen: dict[str, Any], why: str) -> dict[str, Any]:
    """What a probe saw while the broker cannot be asked: nothing is free, and no process is known to be outside."""
    return {**seen, "devices": unknown(seen["devices"]), "trouble": why}


def unknown(devices: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of devices whose leases nobody can tell. One that the driver lost is lost all the same."""
    return [row if row["state"] == "lost" else {**row, "state": "unknown", "outside": []} for row in devices]


def _note(device: Device) -> str | None:
    """What the driver does not tell, where that keeps the device from being free."""
    if device.lost is not None or device.processes is None or device.memory_used is not None:
        return None
    return "the driver does not report how much of its memory is in use"


def renewed(document: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    """A broker's document with the devices as they were seen since; who holds them is known to the broker alone."""
    rows = {row["uuid"]: row for row in seen["devices"]}
    devices = [_renewed_device(row, rows[row["uuid"]]) if row["uuid"] in rows else row for row in document["devices"]]
    return {**document, "devices": devices, "time": seen["time"], "sample_age": 0.0}


def _renewed_device(document: dict[str, Any], seen: dict[str, Any]) -> dict[str, Any]:
    left = document["state"] == "draining" and seen["state"] == "free"
    if document["state"] in ("free", "outside", "lost") or left:
        return {**seen, "leases": document["leases"]}
    leases = {process["pid"]: process["lease"] for process in document["processes"] or ()}
    processes = [{**process, "lease": leases.get(process["pid"])} for process in seen["processes"] or ()]
    kept = {field: document[field] for field in KNOWN_BY_BROKER}
    return {**seen, **kept, "processes": None if seen["processes"] is None else processes}
