"""The life of a request and of its lease, as the table `LEASE` of model/lifecycle.py has it: its effects, one function
each.

Jobs have requests and leases too: they enter the line in jobs.py, and their leases end here like all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpulease.broker.core import history, learned, notices
from gpulease.broker.core.events import ProcessKey
from gpulease.broker.core.instructions import CancelAlarm, Check, LeaseEnded, Unwatch, Watch
from gpulease.broker.core.state import State
from gpulease.broker.core.state.devices import Ended
from gpulease.broker.core.state.requests import Pending
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Checking, Refused
from gpulease.errors import GpuleaseError
from gpulease.model.lifecycle import LEASE, LEASE_ENDS, START, transition
from gpulease.model.values import Lease, Owner
from gpulease.planner import charged, forget, recorded, weight_of
from gpulease.protocol.messages import Granted, error

UNCLAIMED = 10.0  # seconds for a client to come back after the broker was restarted


class Releaser(NamedTuple):
    """The process that released a lease: the shell or script, if a command did it."""

    user: str
    pid: int | None = None


class LeaseStep(NamedTuple):
    """One event in the life of a request or a lease, with what its effects need to know."""

    id: str
    pending: Pending | None = None
    lease: Lease | None = None
    trouble: GpuleaseError | None = None
    why: str = ""
    releaser: Releaser | None = None
    cut: bool = False  # it did not end by itself


def state_of(state: State, id: str) -> str:
    if id in state.requests.unwritten:
        return "asked"
    if id in state.requests.pending:
        return "waiting"
    if id in state.requests.unclaimed:
        return "granted"
    return "held" if id in state.requests.leases else START


def advance(turn: Turn, event: str, step: LeaseStep) -> None:
    after, effects = transition(LEASE, f"lease {step.id}", state_of(turn.state, step.id), event)
    for effect in effects:
        EFFECTS[effect](turn, step)
    reached = state_of(turn.state, step.id)
    assert reached == (START if after in LEASE_ENDS else after), f"{event!r} made {step.id} {reached}, not {after}"


# -------------------------------------------------------------------- what people do


def ask(turn: Turn, pending: Pending) -> None:
    advance(turn, "ask", LeaseStep(pending.id, pending))


def leave(turn: Turn, id: str) -> None:
    """Out of the line, without a message to the client."""
    advance(turn, "leave", LeaseStep(id, turn.state.requests.pending[id]))


def refuse(turn: Turn, id: str, trouble: GpuleaseError) -> None:
    advance(turn, "refuse", LeaseStep(id, turn.state.requests.pending[id], trouble=trouble))


def grant(turn: Turn, lease: Lease) -> None:
    pending = turn.state.requests.pending[lease.id]
    to_claim = pending.claim or lease.id not in turn.state.requests.listeners
    advance(turn, "grant-to-claim" if to_claim else "grant", LeaseStep(lease.id, pending, lease))


def end(turn: Turn, lease: Lease, why: str, releaser: Releaser | None = None, cut: bool = False) -> None:
    """Give back. The devices are free once a check of them, taken later, finds nobody there."""
    advance(turn, "end", LeaseStep(lease.id, lease=lease, why=why, releaser=releaser, cut=cut))


def renew(turn: Turn, lease: Lease) -> None:
    advance(turn, "renew", LeaseStep(lease.id, lease=lease))


def claim(turn: Turn, lease: Lease) -> None:
    advance(turn, "claim", LeaseStep(lease.id, lease=lease))


def granted(state: State, lease: Lease) -> Granted:
    """What a client hears about its lease."""
    devices = [state.devices.by_uuid[uuid] for uuid in lease.devices if uuid in state.devices.by_uuid]
    return {
        "id": lease.id,
        "devices": [{"label": d.label, "uuid": d.uuid, "name": d.name, "vendor": d.vendor} for d in devices],
        "memory": lease.memory,
        "since": lease.since,
        "until": lease.until,
        "visible": state.settings.visible,
    }


# -------------------------------------------------------------------- effects


def _pending(step: LeaseStep) -> Pending:
    assert step.pending is not None
    return step.pending


def _lease(step: LeaseStep) -> Lease:
    assert step.lease is not None
    return step.lease


def _enter_line(turn: Turn, step: LeaseStep) -> None:
    pending = _pending(step)
    turn.state.requests.enter(pending, written=False)
    if pending.deadline is not None and pending.deadline > turn.now:
        turn.alarm(pending.deadline - turn.now, "deadline", step.id)
    schedule_sample(turn)


def schedule_sample(turn: Turn) -> None:
    """As long as somebody waits, or wants to see, others' use of the devices is looked at again, by one alarm."""
    state = turn.state
    if state.needs_samples and not state.devices.sample_due:
        state.devices.sample_due = True
        turn.alarm(state.settings.polling, "sample")


def watch(turn: Turn, owner: Owner) -> None:
    if owner.pid is not None:
        turn.emit(Watch((owner.pid, owner.start_time)))


def _unwatch(turn: Turn, owner: Owner) -> None:
    key = (owner.pid or 0, owner.start_time)
    if owner.pid is not None and key not in turn.state.requests.owned:
        turn.emit(Unwatch(key))


def _leave_line(turn: Turn, step: LeaseStep) -> None:
    pending = turn.state.requests.withdraw(step.id)
    if step.lease is None:
        learned.never_started(turn, step.id)
    if pending.deadline is not None:
        turn.emit(CancelAlarm("deadline", step.id))
    if step.lease is None:
        _unwatch(turn, pending.owner)
    if step.lease is None and step.trouble is None:
        turn.state.requests.listeners.drop(step.id)  # else it is told what came of it


def _tell_waiting(turn: Turn, step: LeaseStep) -> None:
    peer = turn.state.requests.listeners.get(step.id)
    if peer is not None:
        place = 1 + turn.state.requests.line.ahead(step.id)
        turn.send(peer, {"waiting": {"id": step.id, "place": place, "why": step.why}})


def _tell_refused(turn: Turn, step: LeaseStep) -> None:
    peer = turn.state.requests.listeners.get(step.id)
    turn.state.requests.listeners.drop(step.id)
    if peer is not None and step.trouble is not None:
        turn.send(peer, error(step.trouble))


def _hold(turn: Turn, step: LeaseStep) -> None:
    state, lease, pending = turn.state, _lease(step), _pending(step)
    state.requests.hold(lease, claimed=not (pending.claim or lease.id not in state.requests.listeners))
    history.lease_started(turn, lease, _waited(step))
    _set_alarm(turn, step)


def _set_alarm(turn: Turn, step: LeaseStep) -> None:
    until = _lease(step).until
    if until is not None:
        turn.alarm(until - turn.now, "until", step.id)
        notices.set_alarm(turn, _lease(step))


def _write_lease(turn: Turn, step: LeaseStep) -> None:
    token = None if step.pending is None else step.pending.token
    turn.state.requests.write_lease(_lease(step), claimed=step.id not in turn.state.requests.unclaimed, token=token)


def _tell_granted(turn: Turn, step: LeaseStep) -> None:
    """A client that left a moment ago, or waited at a broker that is gone, may come back for it."""
    state, lease = turn.state, _lease(step)
    peer = state.requests.listeners.get(lease.id)
    if peer is None:
        return turn.alarm(UNCLAIMED, "unclaimed", lease.id)
    if lease.id not in state.requests.unclaimed:
        state.requests.listeners.drop(lease.id)
    turn.send(peer, {"granted": granted(state, lease)})


def _charge_usage(turn: Turn, step: LeaseStep) -> None:
    state, lease, now = turn.state, _lease(step), turn.now
    spent = charged(state.learned.usage, lease, weight_of(lease, state.devices.by_uuid), now, state.policy)
    state.learned.charge(forget(spent, now, state.policy), recorded(state.learned.records, lease, now, state.policy))
    learned.learn(turn, lease, step.cut)
    turn.save_soon()


def _drop_lease(turn: Turn, step: LeaseStep) -> None:
    lease, about = _lease(step), turn.state.about
    ticks = int((turn.now - about.boot_time) * about.ticks)
    holder = _evicted(turn, step)
    turn.state.requests.end_lease(lease, Ended(lease.owner.user, turn.now, ticks, lease.outsiders, holder))
    turn.emit(LeaseEnded(turn.now, lease.id))
    if holder is None:
        _unwatch(turn, lease.owner)
    if step.releaser is not None and step.releaser.user != lease.owner.user and lease.kind != "job":
        notices.lease_ended(turn, lease, step.why)
    if lease.until is not None:
        turn.emit(CancelAlarm("until", lease.id))
        turn.emit(CancelAlarm("lease-ending", lease.id))


def _evicted(turn: Turn, step: LeaseStep) -> ProcessKey | None:
    """The process that goes on although somebody else ended its lease: it may use the devices at any moment."""
    lease, by = _lease(step), step.releaser
    owner = lease.owner
    if by is None or owner.pid is None or lease.kind == "job" or by.user == owner.user:
        return None
    return (owner.pid, owner.start_time)


def drained(turn: Turn, key: ProcessKey) -> None:
    """Such a process has ended."""
    for uuid, mark in list(turn.state.devices.ended.items()):
        if mark.holder == key:
            turn.state.devices.ended.put(uuid, mark._replace(holder=None))


def _check_devices(turn: Turn, step: LeaseStep) -> None:
    """When somebody waits: ask about the devices now, before the plan needs to know. To gpuget they go back first."""
    state, devices = turn.state, _lease(step).devices
    checking = isinstance(state.devices.check, Checking)
    seen = state.devices.sample is not None and not state.settings.gpuget
    if devices and state.requests.line and seen and not checking:
        check(turn, frozenset(devices))


def check(turn: Turn, devices: frozenset[str]) -> None:
    state, before = turn.state, turn.state.devices.check
    shown_from = before.shown_from if isinstance(before, Refused) else None
    state.devices.check = Checking(devices, state.revision, shown_from)
    state.devices.locked = True
    turn.emit(Check(state.revision, tuple(sorted(devices)), state.devices.ignored_users(turn.now)))


def _waited(step: LeaseStep) -> float:
    return _lease(step).since - _pending(step).waiting.since


def record(turn: Turn, what: str, lease: Lease, **more: object) -> None:
    owner, labels = lease.owner, turn.state.devices.labels(lease.devices)
    fields = {"id": lease.id, "kind": lease.kind, "user": owner.user, "pid": owner.pid, "devices": labels}
    asked_by = {} if owner.asked_by is None else {"asked_by": owner.asked_by[0]}
    turn.state.record(turn.now, what, **fields, **asked_by, note=lease.note, **more)


def _record_granted(turn: Turn, step: LeaseStep) -> None:
    lease = _lease(step)
    learned.started(turn, lease.id)
    notices.lease_granted(turn, lease, _waited(step))
    record(turn, "granted", lease, waited=_waited(step), **({} if lease.until is None else {"until": lease.until}))


def _record_ended(turn: Turn, step: LeaseStep) -> None:
    by = {} if step.releaser is None else {"releaser": step.releaser.user, "releaser_pid": step.releaser.pid}
    by = {name: value for name, value in by.items() if value is not None}
    record(turn, "ended", _lease(step), since=_lease(step).since, why=step.why, **by)


EFFECTS: dict[str, Callable[[Turn, LeaseStep], None]] = {
    "enter-line": _enter_line,
    "watch-owner": lambda turn, step: watch(turn, _pending(step).owner),
    "write-request": lambda turn, step: turn.state.requests.write_pending(step.id),
    "tell-waiting": _tell_waiting,
    "tell-refused": _tell_refused,
    "leave-line": _leave_line,
    "hold": _hold,
    "write-lease": _write_lease,
    "tell-granted": _tell_granted,
    "claim": lambda turn, step: turn.state.requests.claim(step.id),
    "change": lambda turn, step: turn.state.requests.leases.put(step.id, _lease(step)),
    "set-alarm": _set_alarm,
    "charge-usage": _charge_usage,
    "drop-lease": _drop_lease,
    "check-devices": _check_devices,
    "record-granted": _record_granted,
    "record-ended": _record_ended,
    "record-renewed": lambda turn, step: record(turn, "renewed", _lease(step), until=_lease(step).until),
}
