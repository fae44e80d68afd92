"""Other tools that hand out the same GPUs, as the core sees them: what they hold, and what they must know of leases.

The edge talks to them (broker/edge/neighbours.py). Here is what it says, whether safe-gpu is used here, when a device
goes back, and the one instruction `UpdateNeighbours` that follows from leases, samples and settings. It says all of it
each time, so that an edge that missed something is right after the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpulease.broker.core.devices import update_outside_use
from gpulease.broker.core.events import LockUsed, NeighboursChanged, ProcessKey
from gpulease.broker.core.grants import wanted
from gpulease.broker.core.instructions import Holding, UpdateNeighbours, WriteLog
from gpulease.broker.core.leases import schedule_sample
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.model.job_selection import job_number
from gpulease.model.store import Document
from gpulease.model.values import Device, Lease, Process

REMEMBERED = 86400.0  # seconds that a neighbour counts whose user was seen to take a GPU
SUSPECTED = 300.0  # seconds that one counts of which nothing but its lock was used: any user can hold that
LOOK_AGAIN = 1.0  # seconds between looks at devices that go back, while somebody is still there
WRITTEN = 60.0  # seconds by which that must get later to be written again


def update(turn: Turn) -> None:
    """Tell the neighbours, if what they must know has changed."""
    planned, state = turn.planned, turn.state
    if planned.kept is not None and planned.kept_revision == state.revision:
        return
    if state.settings.gpuget and state.devices.sample is None:
        turn.take_sample()  # gpuget knows devices by their indices
    planned.kept_revision = state.revision
    instruction = _update(turn)
    if instruction != planned.kept:
        if instruction.leaving - (planned.kept or UpdateNeighbours()).leaving:
            look_at_leaving(turn)
        planned.kept = instruction
        turn.emit_first(instruction)  # what somebody is told of is claimed, and stays so
        schedule_sample(turn)  # for who computes on devices that others look at


def _update(turn: Turn) -> UpdateNeighbours:
    """Where no other tool is about, only what other brokers must know."""
    state = turn.state
    settings = in_effect(state)
    held: dict[str, Holding] = {}
    for lease in state.requests.leases.values():
        for uuid in lease.devices:
            held[uuid] = _with(state, held.get(uuid), lease)
    if not _active(settings):
        return UpdateNeighbours(held, settings=settings)
    unseen = frozenset(uuid for uuid in held if is_unseen(state.devices.by_uuid.get(uuid), state.devices.placeholders))
    if not settings["gpuget"]:
        return UpdateNeighbours(held, unseen, settings=settings)
    return UpdateNeighbours(held, unseen, wanted(turn), settings, frozenset(state.devices.leaving.keys() - held.keys()))


def _with(state: State, held: Holding | None, lease: Lease) -> Holding:
    """Of a device: one more lease. A job's owner is its shell, once that was started."""
    pid, began = lease.owner.pid, lease.owner.start_time
    if lease.kind == "job":
        pid, began = state.jobs.shell(job_number(lease.id))
    one = (pid, began, None if lease.until is None else lease.until - state.about.boot_time)
    if held is not None:
        return held._replace(leases=(*held.leases, one))
    note = None if state.settings.hide_commands else lease.note
    return Holding((one,), lease.kind, lease.owner.user, lease.since, note)


def in_effect(state: State) -> dict[str, str]:
    return {"safe-gpu": state.safe_gpu, "gpuget": state.settings.gpuget, "users": state.settings.users}


def _active(settings: Mapping[str, str]) -> bool:
    return settings["safe-gpu"] == "on" or bool(settings["gpuget"])


def is_unseen(device: Device | None, placeholders: Mapping[ProcessKey, str]) -> bool:
    """Whether a tool that looks for processes would take it for free."""
    computing = [one for one in (device.processes if device is not None else None) or () if not one.graphics]
    return all(is_placeholder(one, placeholders) for one in computing)


def is_placeholder(process: Process, placeholders: Mapping[ProcessKey, str]) -> bool:
    return (process.pid, process.start_time) in placeholders


# -------------------------------------------------------------------- what they told


def changed(turn: Turn, event: NeighboursChanged) -> None:
    known = turn.state.devices
    known.neighbour_holds.replace(event.held)
    known.placeholders.replace(event.placeholders)
    if known.neighbours_shown != event.shown:
        known.neighbours_shown = event.shown
    update_outside_use(turn)


# -------------------------------------------------------------------- devices that go back


def look_at_leaving(turn: Turn) -> None:
    """Gone is not free: a neighbour that keeps accounts gets a device back once nobody is seen there."""
    if turn.state.settings.gpuget and turn.state.devices.leaving:
        turn.take_sample()
        turn.alarm(LOOK_AGAIN, "leaving", "all")


def look(turn: Turn) -> None:
    """At a sample: who is gone from the devices of ended leases, and whether the user of safe-gpu's lock took one."""
    devices = turn.state.devices
    if turn.state.settings.gpuget:
        for uuid in list(devices.leaving):
            if devices.seen_since_end([uuid]) and is_empty(devices.by_uuid.get(uuid), devices.placeholders):
                devices.leaving.drop(uuid)
    if devices.lock_user is not None and _is_later(turn, REMEMBERED):
        computing = (one.pid for device in devices.by_uuid.values() for one in device.processes or ())
        if devices.lock_user in computing:
            turn.alarm(0.0, "safe-gpu")  # it is written apart: a full disk must keep nobody from the sample


def is_empty(device: Device | None, placeholders: Mapping[ProcessKey, str]) -> bool:
    """Whether nobody is there, for certain."""
    known = device is not None and device.processes is not None and device.lost is None
    return known and is_unseen(device, placeholders)


# -------------------------------------------------------------------- whether safe-gpu is used here


def lock_used(turn: Turn, event: LockUsed) -> None:
    if turn.state.safe_gpu == "auto":
        turn.emit(WriteLog(f"safe-gpu is used here, by {event.who}: placeholders show which GPUs are leased"))
    turn.state.devices.lock_user = event.pid
    found(turn, SUSPECTED)


def found(turn: Turn, seconds: float) -> None:
    """It counts for so long, unless it does for longer already."""
    if _is_later(turn, seconds):
        _keep_until(turn, {**turn.state.devices.neighbours_about, "safe-gpu": turn.now + seconds})


def _is_later(turn: Turn, seconds: float) -> bool:
    return turn.now + seconds - turn.state.devices.neighbours_about.get("safe-gpu", 0.0) > WRITTEN


def _keep_until(turn: Turn, about: Mapping[str, float]) -> None:
    """Until when each counts; and look again when the first of them is forgotten."""
    counting = {name: moment for name, moment in about.items() if moment > turn.now}
    turn.state.devices.neighbours_about = counting
    turn.state.store.write("facts", "neighbours", dict(counting))
    if counting:
        turn.alarm(min(counting.values()) - turn.now, "neighbours", "all")


def forget_unseen(turn: Turn) -> None:
    _keep_until(turn, turn.state.devices.neighbours_about)


def load(turn: Turn, found: Document) -> None:
    """What a former broker found."""
    if found:
        _keep_until(turn, found)
