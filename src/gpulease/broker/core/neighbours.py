"""Other tools that hand out the same GPUs, as the core sees them: what they hold, and what they must know of leases.

The edge talks to them (broker/edge/neighbours.py). Here is what it told, and the one instruction `Keep` that follows
from leases, samples and settings. It says all of it each time, so that an edge that missed something is right after the
next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpulease.broker.core import outside_use
from gpulease.broker.core.events import Key, NeighboursChanged
from gpulease.broker.core.grants import wanted
from gpulease.broker.core.instructions import Holding, Keep
from gpulease.broker.core.leases import look_again
from gpulease.broker.core.state import State
from gpulease.broker.core.tables import Table
from gpulease.broker.core.turn import Turn
from gpulease.model.job_selection import job_number
from gpulease.model.store import Document
from gpulease.model.values import Device, Lease, Process

REMEMBERED = 86400.0  # seconds that a neighbour counts whose user was seen to take a GPU
SUSPECTED = 300.0  # seconds that one counts of which nothing but its lock was used: any user can hold that
WRITTEN = 60.0  # seconds by which that must get later to be written again


def keep(turn: Turn) -> None:
    """Tell the neighbours, if what they must know has changed."""
    planned, state = turn.planned, turn.state
    if planned.kept is not None and planned.kept_revision == state.revision:
        return
    if state.settings.gpuget and state.sample is None:
        turn.take_sample()  # gpuget knows devices by their indices
    planned.kept_revision = state.revision
    told = _keep(turn)
    if told != planned.kept:
        planned.kept = told
        turn.emit_first(told)  # what somebody is told of is claimed, and stays so
        look_again(turn)  # for who computes on devices that others look at


def _keep(turn: Turn) -> Keep:
    """Where no other tool is about, only what other brokers must know."""
    state = turn.state
    settings = in_effect(state)
    held: dict[str, Holding] = {}
    for lease in state.leases.values():
        for uuid in lease.devices:
            held[uuid] = _with(state, held.get(uuid), lease)
    if not _active(settings):
        return Keep(held, settings=settings)
    unseen = frozenset(uuid for uuid in held if is_unseen(state.devices.get(uuid), state.placeholders))
    return Keep(held, unseen, wanted(turn) if settings["gpuget"] else frozenset(), settings)


def _with(state: State, held: Holding | None, lease: Lease) -> Holding:
    """Of a device: one more lease. A job's owner is its shell, once that was started."""
    pid, began = lease.owner.pid, lease.owner.start_time
    if lease.kind == "job":
        pid, began = state.roots.get(job_number(lease.id), (None, None))
    one = (pid, began, None if lease.until is None else lease.until - state.about.boot_time)
    if held is not None:
        return held._replace(leases=(*held.leases, one))
    note = None if state.settings.hide_commands else lease.note
    return Holding((one,), lease.kind, lease.owner.user, lease.since, note)


def in_effect(state: State) -> dict[str, str]:
    return {"safe-gpu": state.safe_gpu, "gpuget": state.settings.gpuget, "users": state.settings.users}


def _active(settings: Mapping[str, str]) -> bool:
    return settings["safe-gpu"] == "on" or bool(settings["gpuget"])


def is_unseen(device: Device | None, placeholders: Mapping[Key, str]) -> bool:
    """Whether a tool that looks for processes would take it for free."""
    computing = [one for one in (device.processes if device is not None else None) or () if not one.graphics]
    return all(is_placeholder(one, placeholders) for one in computing)


def is_placeholder(process: Process, placeholders: Mapping[Key, str]) -> bool:
    return (process.pid, process.start_time) in placeholders


# -------------------------------------------------------------------- what they told


def changed(turn: Turn, event: NeighboursChanged) -> None:
    state = turn.state
    _replace(state.neighbour_holds, event.held)
    _replace(state.placeholders, event.placeholders)
    if state.neighbours_shown != event.shown:
        state.set("neighbours_shown", event.shown)
    outside_use.look(turn)
    known = state.neighbours_about
    until = {name: turn.now + (REMEMBERED if took else SUSPECTED) for name, took in event.about.items()}
    if later := {name: moment for name, moment in until.items() if moment - known.get(name, 0.0) > WRITTEN}:
        _remember(turn, {**known, **later})


def _remember(turn: Turn, about: Mapping[str, float]) -> None:
    """Until when each counts; and look again when the first of them is forgotten."""
    counting = {name: moment for name, moment in about.items() if moment > turn.now}
    turn.state.set("neighbours_about", counting, planned=True)
    turn.state.store.write("facts", "neighbours", dict(counting))
    if counting:
        turn.alarm(min(counting.values()) - turn.now, "neighbours", "all")


def forget(turn: Turn) -> None:
    _remember(turn, turn.state.neighbours_about)


def _replace(table: Table[Any, Any], rows: Mapping[Any, Any]) -> None:
    for key in [key for key in table if key not in rows]:
        table.drop(key)
    for key, value in rows.items():
        if table.get(key) != value:
            table.put(key, value)


def load(turn: Turn, found: Document) -> None:
    """Those that were found by a former broker."""
    if found:
        _remember(turn, found)
