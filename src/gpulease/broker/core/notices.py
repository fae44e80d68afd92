"""Which notices follow from an event, and which users asked for them. The user's own agent sends them.

The broker knows of each user which events they chose and in which file of theirs the address stands, never the address.
"""

from __future__ import annotations

import os

from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import CallHook, Notify
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import NoticeChoice
from gpulease.errors import NotFound, TooMuch, UsageError
from gpulease.model.job_selection import job_number
from gpulease.model.jobs import Job
from gpulease.model.notices import USUAL, read_events
from gpulease.model.values import Lease
from gpulease.protocol.messages import NotifyRequest, ToldOf

MAX_USERS = 10_000
SHORTEST = 120.0  # seconds: of the end of a shorter lease nobody is told before
NEW, WRITTEN, BACK = "new", "written", "back"  # of a device that is lost: what the events know of it
NAME = 60  # letters of what stands for a job without a name

# -------------------------------------------------------------------- choosing


def notify(turn: Turn, event: Received[NotifyRequest]) -> None:
    """`gpulease notify`: what this user chose; with a file, choose; with `clear`, nothing any more."""
    peer, chosen = event.peer, turn.state.chosen
    message = event.message
    if message.get("clear"):
        turn.state.choose(peer.uid, None)
    elif (file := message.get("file")) is not None:
        if peer.uid not in chosen and len(chosen) >= MAX_USERS:
            raise TooMuch(f"More than {MAX_USERS} users would get notices.")
        before = chosen.get(peer.uid)
        events = message.get("events")
        kept = before.events if before else USUAL
        kinds = kept if events is None else read_events(events, "--on")
        turn.state.choose(peer.uid, NoticeChoice(_path(file), kinds))
    now = chosen.get(peer.uid)
    turn.reply(peer, ToldOf(file=now and now.file, events=None if now is None else list(now.events)))


def _path(text: str) -> str:
    """Where the user's own agent finds the address; the broker never looks."""
    if not os.path.isabs(text) or "\0" in text:
        raise UsageError("Invalid path of the file with the address for notices.", "Give a full path.")
    return text


def check_address(turn: Turn, uid: int) -> None:
    """A job that says of what it tells needs an address."""
    if uid not in turn.state.chosen:
        raise NotFound("No address for notices is set at this broker.", "Set one with `gpulease notify set ADDRESS`.")


# -------------------------------------------------------------------- what happens


def lease_granted(turn: Turn, lease: Lease, waited: float) -> None:
    if waited >= turn.state.settings.notify_waited:
        _notify(turn, lease.owner.uid, "turn", None, waited=waited, **_lease(turn, lease))


def job_granted(turn: Turn, job: Job) -> None:
    waited = max(0.0, turn.now - job.added)
    if job.run == 1 and waited >= turn.state.settings.notify_waited:
        _notify(turn, job.uid, "turn", job.spec.notify, waited=waited, **_job(turn, job))


def job_ended(turn: Turn, job: Job) -> None:
    """A run ended, and the job with it or not. Of what its user did nobody needs to tell them."""
    if job.out_of_memory and "out-of-memory" in _wanted(turn, job.uid, job.spec.notify):
        _notify(turn, job.uid, "out-of-memory", job.spec.notify, **_job(turn, job))
    elif job.over and job.why not in (f"killed by {job.user}", f"removed by {job.user}"):
        _notify(turn, job.uid, "ended" if job.state == "complete" else "failed", job.spec.notify, **_job(turn, job))


def warn_at(now: float, until: float, before: float) -> float | None:
    """When to tell that a lease ends: so long before, but not before half of what is left of it; None: not at all."""
    left = until - now
    return None if left < SHORTEST else max(until - before, now + left / 2)


def set_alarm(turn: Turn, lease: Lease) -> None:
    if lease.until is not None:
        at = warn_at(turn.now, lease.until, turn.state.settings.notify_before)
        if at is not None:
            turn.alarm(at - turn.now, "lease-ending", lease.id)


def lease_ending(turn: Turn, id: str) -> None:
    """Its alarm went off. One that was renewed meanwhile has another."""
    lease, before = turn.state.requests.leases.get(id), turn.state.settings.notify_before
    if lease is not None and lease.until is not None and lease.until - turn.now <= before + 1:
        until = lease.until + turn.state.requests.wall_ahead
        _notify(turn, lease.owner.uid, "lease-ending", None, until=until, **_lease(turn, lease))


def lease_ended(turn: Turn, lease: Lease, why: str) -> None:
    """Somebody else ended it."""
    _notify(turn, lease.owner.uid, "lease-ending", None, until=_wall(turn), why=why, **_lease(turn, lease))


def check_lost_devices(turn: Turn) -> None:
    """New sample: notify the holders and managers of each device that was lost since the last one, once."""
    state = turn.state
    for uuid, device in state.devices.by_uuid.items():
        known = state.devices.broken.get(uuid)
        if device.lost is None and known is not None and known != BACK:
            state.devices.broken.put(uuid, BACK)
            turn.alarm(0.0, "lost")
        elif device.lost is not None and known in (None, BACK):
            state.devices.broken.put(uuid, NEW)
            turn.alarm(0.0, "lost")
            _notify_broken(turn, uuid, device.lost)


def record_lost_devices(turn: Turn) -> None:
    """Into the events; apart from the sample, which a full disk must not keep from anybody."""
    state = turn.state
    for uuid, known in list(state.devices.broken.items()):
        device, labels = state.devices.by_uuid.get(uuid), state.devices.labels([uuid])
        users = sorted({lease.owner.user for lease in state.requests.leases.values() if uuid in lease.devices})
        if known == NEW and device is not None:
            why = f"the driver lost it: {(device.lost or '').rstrip('.')}"
            why += f"; it is leased to {', '.join(users)}" if users else ""
            state.record(turn.now, "gpu-lost", user="", devices=labels, why=why)
            state.devices.broken.put(uuid, WRITTEN)
        elif known == BACK:
            state.record(turn.now, "gpu-back", user="", devices=labels, why="the driver has it again")
            state.devices.broken.drop(uuid)


def device_used_by_others(turn: Turn, uuid: str, user: str, pid: int | None) -> None:
    """Somebody else uses a leased device: notify its holders, once."""
    for lease in [one for one in turn.state.requests.leases.values() if uuid in one.devices]:
        if pid not in [known for known, _ in lease.outsiders]:
            labels = turn.state.devices.labels([uuid])
            about = {"devices": labels, "uuid": uuid, "users": [user] if user else [], "pid": pid}
            _notify(turn, lease.owner.uid, "gpu-used", _of_job(turn, lease), lease=lease.id, **about)


def _notify_broken(turn: Turn, uuid: str, why: str) -> None:
    state = turn.state
    on = [lease for lease in state.requests.leases.values() if uuid in lease.devices]
    about = {"devices": state.devices.labels([uuid]), "uuid": uuid, "why": why.rstrip(".")}
    held = {lease.owner.uid: lease for lease in on}
    for uid, lease in held.items():
        _notify(turn, uid, "gpu-broken", _of_job(turn, lease), lease=lease.id, **about)
    users = sorted({lease.owner.user for lease in on})
    for uid in [uid for uid in state.chosen if state.manages(uid) and uid not in held]:
        _notify(turn, uid, "gpu-broken", None, users=users, **about)
    if state.settings.on_broken:
        message = {"host": state.about.host, "time": _wall(turn), "users": users, **about}
        turn.emit(CallHook("on-broken", state.settings.on_broken, f"GPU {about['devices'][0]}", message))


# -------------------------------------------------------------------- telling


def _notify(turn: Turn, uid: int, event: str, own: tuple[str, ...] | None, **fields: object) -> None:
    if event in _wanted(turn, uid, own):
        notice = {"event": event, "time": _wall(turn), "host": turn.state.about.host, **fields}
        turn.emit(Notify(uid, turn.state.chosen[uid].file, notice, turn.state.settings.notify_every))


def _wanted(turn: Turn, uid: int, own: tuple[str, ...] | None) -> tuple[str, ...]:
    """`own`: what a job of theirs says itself."""
    chosen = turn.state.chosen.get(uid)
    return () if chosen is None else chosen.events if own is None else own


def _of_job(turn: Turn, lease: Lease) -> tuple[str, ...] | None:
    job = turn.state.jobs.running.get(job_number(lease.id))
    return None if job is None else job.spec.notify


def _wall(turn: Turn) -> float:
    return turn.now + turn.state.requests.wall_ahead


def _lease(turn: Turn, lease: Lease) -> dict[str, object]:
    labels = turn.state.devices.labels(lease.devices)
    return {"lease": lease.id, "kind": lease.kind, "devices": labels, "note": lease.note}


def _job(turn: Turn, job: Job) -> dict[str, object]:
    """Of a command its first two words only: there may be secrets among the others."""
    ran = None if job.started is None or job.ended is None else job.ended - job.started
    words = [os.path.basename(word) for word in job.spec.command[:2] if not word.startswith("-")]
    name = job.spec.name or " ".join(words)[:NAME]
    kept = {field: getattr(job, field) for field in ("state", "exit_code", "signal", "why", "out_of_memory")}
    return {"job": job.id, "name": name, "label": job.spec.label, "devices": list(job.devices), "ran": ran, **kept}
