"""The devices beside who holds them: what is known of one that the driver loses, and use without a lease."""

from __future__ import annotations

from collections.abc import Sequence

from gpulease.broker.core import notices
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.model.values import Device, Lease, Sample
from gpulease.planner import DeviceState, device_state
from gpulease.planner.device_states import THROUGH, held

# -------------------------------------------------------------------- devices that the driver loses


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


def update_known(turn: Turn) -> None:
    """What is to be written is written apart: a full disk must keep nobody from the sample."""
    if _current(turn.state) != dict(turn.state.devices.known):
        turn.alarm(0.0, "known-devices")


def write_known(turn: Turn) -> None:
    state, seen = turn.state, _current(turn.state)
    if seen != dict(state.devices.known):
        rows = {uuid: {name: getattr(one, name) for name in KEPT} for uuid, one in seen.items()}
        state.store.write("facts", "devices", {"boot_id": state.about.boot_id, "devices": rows})
        state.devices.known.replace(seen)


def load_known(state: State, fact: dict[str, object]) -> None:
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


# -------------------------------------------------------------------- use without a lease


ENDED_AFTER = 60.0  # seconds without it until it has ended: who comes and goes is one use

HELD_PREFIX = "held "  # and by which neighbour: in the place of a user
Use = tuple[str, str]  # device and user


def update_outside_use(turn: Turn) -> dict[str, list[str]]:
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


def write_outside_use(turn: Turn) -> None:
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
