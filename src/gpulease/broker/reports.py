"""What the broker shows: the status document and the explanation of one request."""

from __future__ import annotations

from gpulease.broker.connection import Connection
from gpulease.broker.core import Core
from gpulease.broker.views import views
from gpulease.errors import NotFound
from gpulease.model import Device, Lease, Waiting
from gpulease.planner import DeviceState, DeviceView, device_state
from gpulease.stores.base import Document

MOST_LINES = 1000  # of the line that one status shows


def status(core: Core, connection: Connection) -> Document:
    """The contract's document. Without a sample it says what is wrong instead of devices."""
    seen = views(core.devices.values(), core.leases.values(), core.ended, core.excluded, core.host)
    waiting = core.queue.first_waiting(MOST_LINES)
    return {
        "host": core.host,
        "simulated": core.simulated,
        "driver": core.sample.driver if core.sample else None,
        "time": core.sample_time,
        "sample_age": core.now() - core.sample_time if core.sample else None,
        "trouble": None if core.trouble is None else str(core.trouble),
        "broker": core.edge.about(),
        "devices": [_device(core, device, seen[device.uuid]) for device in core.devices.values()],
        "leases": [lease_row(core, lease) for lease in core.leases.values()],
        "line": [line_row(core, entry) for entry in waiting],
        "line_length": len(core.line),
    }


def _device(core: Core, device: Device, view: DeviceView) -> Document:
    on = [lease for lease in core.leases.values() if device.uuid in lease.devices]
    state = device_state(device, on, view, core.policy)
    shown = leased_state(state, on)
    fields = device._asdict()
    processes = fields.pop("processes")
    return {
        **fields,
        "label": device.label,
        "state": shown,
        "outside": list(state.pids) if state.state == "outside" else [],
        "note": state.note,
        "leases": [lease.id for lease in on],
        "processes": None
        if processes is None
        else [{**process._asdict(), "lease": _lease_of(process.user, process.pid, on, view)} for process in processes],
    }


def leased_state(state: DeviceState, on: list[Lease]) -> str:
    """A leased device with a stranger on it is still leased; the stranger is shown beside."""
    if state.state == "outside" and on:
        return "shared" if all(lease.memory is not None for lease in on) else "leased"
    return state.state


def _lease_of(user: str | None, pid: int, on: list[Lease], view: DeviceView) -> str | None:
    if pid not in view.explained:
        return None
    mine = [lease for lease in on if lease.owner.user == user]
    exact = [lease for lease in mine if lease.owner.pid == pid]
    return (exact or mine)[0].id


def lease_row(core: Core, lease: Lease) -> Document:
    return {
        "id": lease.id,
        "kind": lease.kind,
        "devices": list(lease.devices),
        "labels": core.labels(lease.devices),
        "user": lease.owner.user,
        "pid": lease.owner.pid,
        "since": lease.since,
        "until": lease.until,
        "memory": lease.memory,
        "priority": lease.priority,
        "note": lease.note,
    }


def line_row(core: Core, entry: Waiting) -> Document:
    asker = core.askers.get(entry.id)
    return {
        "id": entry.id,
        "kind": entry.kind,
        "user": entry.user,
        "pid": None if asker is None else asker.owner.pid,
        "gpus": entry.request.gpus,
        "memory": entry.request.memory,
        "priority": entry.request.priority,
        "since": entry.since,
        "why": core.asking.why(entry.id),
        "note": None if asker is None else asker.note,
    }


def explain(core: Core, id: str) -> Document:
    if id in core.leases:
        return {"id": id, "lease": lease_row(core, core.leases[id]), "why": None, "devices": []}
    if id.isdecimal():
        id = f"J{id}"
    if id not in core.line:
        raise NotFound(f"There is no request {id[:40]!r}.", "Run `gpulease status` to see the line.")
    code, sentence = core.asking.reason(id)
    verdicts = [] if code == "checking" else core.granting.current_plan().explain(id)
    rows = [{"label": v.label, "uuid": v.device, "code": v.code, "why": v.sentence} for v in verdicts]
    return {"id": id, "lease": None, "place": core.asking.place(id), "code": code, "why": sentence, "devices": rows}
