"""What each request about leases and devices does. One function a verb; each either replies or raises."""

from __future__ import annotations

from collections.abc import Callable

from gpulease.broker import (
    backups,
    job_verbs,
    learning,
    lease_life,
    noticing,
    remembering,
    reports,
    requesting,
    subscribing,
)
from gpulease.broker.allowances import allowance, check_renewal
from gpulease.broker.events import Received
from gpulease.broker.foreseeing import foresee
from gpulease.broker.instructions import Stop
from gpulease.broker.job_adding import check_user
from gpulease.broker.lease_life import Releaser
from gpulease.broker.peer import Peer
from gpulease.broker.turn import FRESH, Turn
from gpulease.broker.visibility import of_event, viewer
from gpulease.errors import NotFound, NotPermitted, ProtocolError, UsageError
from gpulease.messages import Message, check
from gpulease.model import Device, Lease
from gpulease.selection import find

MOST_EVENTS = 10_000
NEEDS_DEVICES = {"add", "edit", "start", "acquire", "release", "explain", "status", "subscribe", "exclude", "include"}


def handle(turn: Turn, event: Received) -> None:
    """Check and do. What needs to know the devices waits for the first sample."""
    message, state = event.message, turn.state
    if not isinstance(message.get("do"), str):
        raise ProtocolError("The message does not say what to do.")
    if event.progress is not None:
        return VERBS[message["do"]](turn, event)  # it was checked when it began
    if any(waiting.peer is event.peer for waiting in state.awaiting):
        return turn.after_sample(event)  # answers come in the order of the questions
    verb = check(message)["do"]
    if verb in NEEDS_DEVICES and state.sample is None and not _told_lately(turn):
        return turn.after_sample(event)
    return VERBS[verb](turn, event)


def _told_lately(turn: Turn) -> bool:
    """Whether the driver was asked in vain a moment ago: then it is not asked again for each who comes."""
    return turn.state.trouble is not None and turn.now - turn.state.failed_at <= FRESH


# -------------------------------------------------------------------- giving back


def release(turn: Turn, event: Received) -> None:
    message, peer = event.message, event.peer
    whole, if_held = bool(message.get("all")), bool(message.get("if_held"))
    if whole:
        _only_managers(turn, peer)
        leases = [lease for lease in turn.state.leases.values() if lease.kind != "job"]
    else:
        leases = _named_leases(turn, peer, message.get("what") or [], bool(message.get("mine")), if_held)
    if message.get("gone"):
        leases = [lease for lease in leases if _is_left_behind(turn, lease)]
    released = [_short(turn, lease) for lease in leases]
    for lease in leases:
        why = "released, since the process that asked is gone" if message.get("gone") else f"released by {peer.user}"
        lease_life.end(turn, lease, why, _releaser(turn, peer, lease))
    turn.reply(peer, released=released)


def _releaser(turn: Turn, peer: Peer, lease: Lease) -> Releaser:
    """A program that gives back its own is named itself; a command is gone in a moment, and its script is named."""
    return Releaser(peer.user, peer.pid if peer.pid == lease.owner.pid else turn.world.asking_process(peer.pid))


def _is_left_behind(turn: Turn, lease: Lease) -> bool:
    """Whether it is a reservation of a process that is gone, for certain."""
    asked_by = lease.owner.asked_by
    if asked_by is None:
        return False
    return lease.owner.boot_id != turn.state.about.boot_id or turn.world.is_gone(*asked_by)


def _named_leases(turn: Turn, peer: Peer, names: list[str], mine: bool, if_held: bool = False) -> list[Lease]:
    found: dict[str, Lease] = {}
    if mine:
        leases = turn.state.leases.items()
        found = {id: one for id, one in leases if one.owner.uid == peer.uid and one.kind != "job"}
    elif not names and not if_held:
        raise UsageError("Nothing to release was named.", "Give a lease id, a device, or --mine.")
    for name in names:
        on = _leases_on(turn, name)
        try:
            found |= {lease.id: lease for lease in _leases_called(turn, peer, name, on)}
        except (NotFound, NotPermitted, UsageError):
            if not if_held:
                raise
    return list(found.values())


def _leases_on(turn: Turn, name: str) -> list[Lease]:
    """The lease of that id, or those of a device."""
    state = turn.state
    if name in state.leases:
        return [state.leases[name]]
    if name[:1] == "L" and name[1:].isdecimal():
        return []
    device = find(name, list(state.devices.values()))
    return [lease for lease in state.leases.values() if device.uuid in lease.devices]


def _leases_called(turn: Turn, peer: Peer, name: str, leases: list[Lease]) -> list[Lease]:
    """Those that the client may end."""
    by_id = name in turn.state.leases
    if not leases:
        what = f"There is no lease {name}." if name[:1] == "L" else f"Device {name} is not leased."
        raise NotFound(what, "Run `gpulease status` to see the leases.")
    for lease in leases:
        if lease.kind == "job":
            raise UsageError(f"{name} belongs to job {lease.id[1:]}.", f"End it with `gpulease kill {lease.id[1:]}`.")
    mine = [lease for lease in leases if peer.uid in (0, lease.owner.uid)]
    if not mine:
        users = ", ".join(sorted({lease.owner.user for lease in leases}))
        raise NotPermitted(f"{name} is leased to {users}.", "Only its user or root may do that.")
    return mine if by_id else _of_the_asking_script(turn, peer, name, mine)


def _of_the_asking_script(turn: Turn, peer: Peer, device: str, leases: list[Lease]) -> list[Lease]:
    """A device may have passed to another script of the same user, which still works there."""
    found = [
        lease
        for lease in leases
        if lease.owner.pid is None or lease.owner.uid != peer.uid or turn.world.same_script(peer.pid, lease.owner.pid)
    ]
    if not found:
        held = ", ".join(f"{lease.id} of process {lease.owner.pid}" for lease in leases)
        step = f"If it is to end, name it: `gpulease release {leases[0].id}`."
        raise UsageError(f"GPU {device} is held by another of your scripts ({held}).", step)
    return found


def _short(turn: Turn, lease: Lease) -> Message:
    labels = turn.state.labels(lease.devices)
    return {"id": lease.id, "devices": labels, "user": lease.owner.user, "until": lease.until}


def renew(turn: Turn, event: Received) -> None:
    names = event.message.get("what") or []
    leases = _named_leases(turn, event.peer, names, not names)
    timed = [lease for lease in leases if lease.until is not None]
    if not timed:
        raise NotFound("There is no timed lease to renew.", "Only what was taken with --for ends by the clock.")
    renewed = [lease._replace(until=turn.now + event.message["duration"]) for lease in timed]
    for lease in renewed:
        check_renewal(allowance(turn.state, lease.owner.user, lease.owner.groups), lease)
    for lease in renewed:
        lease_life.renew(turn, lease)
    turn.reply(event.peer, renewed=[_short(turn, lease) for lease in renewed])


# -------------------------------------------------------------------- looking


def status(turn: Turn, event: Received) -> None:
    if turn.stale() and not _told_lately(turn):
        return turn.after_sample(event)
    seen_by = viewer(turn.state.settings, event.peer)
    if seen_by not in turn.status:
        turn.status[seen_by] = {"ok": reports.status(turn, seen_by)}  # the same for all who ask in one turn
    return turn.send(event.peer, turn.status[seen_by])


def explain(turn: Turn, event: Received) -> None:
    """Of what waits, by its id; or of a request that nobody has made."""
    if event.message.get("request") is not None:
        if turn.stale() and not _told_lately(turn):
            return turn.after_sample(event)
        return turn.send(event.peer, {"ok": foresee(turn, event)})
    if event.message.get("id") is None:
        raise UsageError("Nothing to explain was named.", "Give the id of what waits, or a request.")
    return turn.send(
        event.peer, {"ok": reports.explain(turn, event.message["id"], viewer(turn.state.settings, event.peer))}
    )


def events(turn: Turn, event: Received) -> None:
    message, peer, store = event.message, event.peer, turn.state.store
    since = 0.0 if message.get("since") is None else turn.now - message["since"]
    most = max(1, min(MOST_EVENTS, message.get("most") or 1000))
    rows = [{"time": record.time, "what": record.what, **record.fields} for record in store.events(since, most)]
    turn.reply(peer, events=[of_event(row, viewer(turn.state.settings, peer)) for row in rows])


def ping(turn: Turn, event: Received) -> None:
    turn.send(event.peer, {"ok": turn.state.describe(turn.now)})


# -------------------------------------------------------------------- managing


def exclude(turn: Turn, event: Received) -> None:
    _only_managers(turn, event.peer)
    devices, given = _named_devices(turn, event), event.message.get("note")
    for device in devices:
        note = turn.state.excluded.get(device.uuid, "") if given is None else given
        turn.state.exclude(device.uuid, note)
        turn.state.record(turn.now, "excluded", user=event.peer.user, devices=[device.label], note=note)
    turn.reply(event.peer, excluded=[device.label for device in devices])


def include(turn: Turn, event: Received) -> None:
    _only_managers(turn, event.peer)
    devices = _named_devices(turn, event)
    for device in devices:
        turn.state.exclude(device.uuid, None)
        turn.state.record(turn.now, "included", user=event.peer.user, devices=[device.label], note="")
    turn.reply(event.peer, included=[device.label for device in devices])


def _named_devices(turn: Turn, event: Received) -> list[Device]:
    devices = list(turn.state.devices.values())
    return [find(name, devices) for name in event.message["what"]]


def stop(turn: Turn, event: Received) -> None:
    _only_managers(turn, event.peer)
    state = turn.state
    ending = sum(job.ending is not None for job in state.running.values())
    jobs = len(state.running)
    turn.reply(event.peer, leases=len(state.leases), jobs=jobs, ending=ending, line=len(state.line))
    turn.emit(Stop())


def notify(turn: Turn, event: Received) -> None:
    """Who is to be told of something needs an agent, as jobs do."""
    if event.message.get("file") is not None:
        check_user(turn, event.peer, "send notices for", "Ask")
    noticing.notify(turn, event)


def _only_managers(turn: Turn, peer: Peer) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may do that.", "Ask one of them.")


def learned(turn: Turn, event: Received) -> None:
    """Of who asks, and of nobody else."""
    user, clear = event.peer.user, bool(event.message.get("clear"))
    forgotten = {"forgotten": learning.forget(turn, user)} if clear else {}
    turn.reply(event.peer, shapes=learning.rows(turn, user), starts=learning.accuracy(turn), **forgotten)


VERBS: dict[str, Callable[[Turn, Received], None]] = {
    "acquire": requesting.acquire,
    "why": requesting.ask_why,
    "taken": requesting.taken,
    "cancel": requesting.cancel,
    "release": release,
    "renew": renew,
    "explain": explain,
    "status": status,
    "subscribe": subscribing.subscribe,
    "events": events,
    "learned": learned,
    "history": remembering.history,
    "usage": remembering.usage,
    "totals": remembering.totals,
    "exclude": exclude,
    "include": include,
    "notify": notify,
    "ping": ping,
    "stop": stop,
    "backup": backups.backup,
    **job_verbs.JOB_VERBS,
}
