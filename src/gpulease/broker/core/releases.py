"""`release` and `renew`: which leases a client means, whether they are its own, and their end, in pieces.

Nothing is ended before all that was named is found. Between two pieces it is the others' turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpulease.broker.core import bulk, leases
from gpulease.broker.core.events import Received, ReleaseProgress
from gpulease.broker.core.instructions import Continue
from gpulease.broker.core.leases import Releaser
from gpulease.broker.core.limits import allowance, check_renewal
from gpulease.broker.core.turn import Turn
from gpulease.errors import NotFound, NotPermitted, UsageError
from gpulease.model.device_selection import find
from gpulease.model.job_selection import job_text
from gpulease.model.peer import Peer
from gpulease.model.values import Lease
from gpulease.protocol.messages import Released, ReleaseRequest, Renewed, RenewRequest, ShortLease

PIECE = 50  # leases of one piece
SCRIPTS_PER_PIECE = 8  # processes whose script is looked for in one piece


def release(turn: Turn, event: Received[ReleaseRequest]) -> None:
    peer = event.peer
    message = event.message
    progress = _progress(event)
    if progress.left is None:
        chosen = _all(turn, peer) if message.get("all") else _named_leases(turn, event, progress)
        if chosen is None:
            return
        script = _script(turn, peer, chosen, progress)
        progress = progress._replace(left=tuple(lease.id for lease in chosen), script=script)
    most = bulk.size(event, PIECE)
    piece, left = (progress.left or ())[:most], (progress.left or ())[most:]
    held = turn.state.requests.leases
    ending = [held[id] for id in piece if id in held]  # the others ended meanwhile
    if message.get("gone"):
        ending = [lease for lease in ending if _is_left_behind(turn, lease)]
    released = (*progress.released, *(_short(turn, lease) for lease in ending))
    for lease in ending:
        why = "released, since the process that asked is gone" if message.get("gone") else f"released by {peer.user}"
        by = peer.pid if peer.pid == lease.owner.pid else progress.script
        leases.end(turn, lease, why, Releaser(peer.user, by))
    if left:
        turn.emit(Continue(event._replace(progress=progress._replace(left=left, released=released))))
    else:
        turn.reply(peer, Released(released=list(released)))


def renew(turn: Turn, event: Received[RenewRequest]) -> None:
    message = event.message
    found = _named_leases(turn, event, _progress(event), mine=not message.get("what"))
    if found is None:
        return
    timed = [lease for lease in found if lease.until is not None]
    if not timed:
        raise NotFound("There is no timed lease to renew.", "Only a lease that was taken for a time ends by the clock.")
    renewed = [lease._replace(until=turn.now + message["duration"]) for lease in timed]
    for lease in renewed:
        check_renewal(allowance(turn.state, lease.owner.user, lease.owner.groups), lease)
    for lease in renewed:
        leases.renew(turn, lease)
    turn.reply(event.peer, Renewed(renewed=[_short(turn, lease) for lease in renewed]))


def only_managers(turn: Turn, peer: Peer) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may do that.", "Ask one of them.")


def _progress(event: Received[Any]) -> ReleaseProgress:
    return event.progress if isinstance(event.progress, ReleaseProgress) else ReleaseProgress()


def _short(turn: Turn, lease: Lease) -> ShortLease:
    labels = turn.state.devices.labels(lease.devices)
    return {"id": lease.id, "devices": labels, "user": lease.owner.user, "until": lease.until}


def _is_left_behind(turn: Turn, lease: Lease) -> bool:
    """Whether it is a reservation of a process that is gone, for certain."""
    asked_by = lease.owner.asked_by
    if asked_by is None:
        return False
    return lease.owner.boot_id != turn.state.about.boot_id or turn.world.is_gone(*asked_by)


# -------------------------------------------------------------------- which are meant


def _all(turn: Turn, peer: Peer) -> list[Lease]:
    only_managers(turn, peer)
    return [lease for lease in turn.state.requests.leases.values() if lease.kind != "job"]


def _named_leases(
    turn: Turn, event: Received[Any], progress: ReleaseProgress, mine: bool = False
) -> list[Lease] | None:
    """None when it is first to be found out who started some processes: then it is gone on with."""
    peer = event.peer
    message: ReleaseRequest = event.message  # or one of `renew`, which has fewer fields
    names, if_held = list(dict.fromkeys(message.get("what") or [])), bool(message.get("if_held"))
    if mine or message.get("mine"):
        return [one for one in turn.state.requests.leases.values() if one.owner.uid == peer.uid and one.kind != "job"]
    if not names and not if_held:
        raise UsageError("Nothing to release was named.", "Give a lease id, a device, or `mine`.")
    meant = _leases_by_name(turn, names)
    asked = [lease for name, on in meant.items() for lease in on if name not in turn.state.requests.leases]
    known, more = _with_scripts(turn, peer, asked, progress)
    if more:
        turn.emit(Continue(event._replace(progress=known)))
        return None
    found: dict[str, Lease] = {}
    for name, on in meant.items():
        try:
            found |= {lease.id: lease for lease in _leases_called(turn, peer, name, on, known)}
        except (NotFound, NotPermitted, UsageError):
            if not if_held:
                raise
    return list(found.values())


def _leases_by_name(turn: Turn, names: Iterable[str]) -> dict[str, list[Lease]]:
    """By name: the lease of that id, or those of a device. A device that is named in several ways counts once."""
    state, devices = turn.state, list(turn.state.devices.by_uuid.values())
    found: dict[str, list[Lease]] = {}
    named: dict[str, str] = {}  # by device
    for name in names:
        if name in state.requests.leases or (name[:1] == "L" and name[1:].isdecimal()):
            found[name] = [state.requests.leases[name]] if name in state.requests.leases else []
        elif (uuid := find(name, devices).uuid) not in named:
            named[uuid] = name
            found[name] = []
    for lease in state.requests.leases.values() if named else ():
        for uuid in lease.devices:
            if uuid in named:
                found[named[uuid]].append(lease)
    return found


def _leases_called(turn: Turn, peer: Peer, name: str, leases: list[Lease], known: ReleaseProgress) -> list[Lease]:
    """The leases that the client may end."""
    by_id = name in turn.state.requests.leases
    if not leases:
        what = f"There is no lease {name}." if name[:1] == "L" else f"Device {name} is not leased."
        raise NotFound(what, "Run `gpulease status` to see the leases.")
    for lease in leases:
        if lease.kind == "job":
            job = job_text(lease.id)
            raise UsageError(f"{name} belongs to job {job}.", f"End it with `gpulease kill {job}`.")
    mine = [lease for lease in leases if peer.uid in (0, lease.owner.uid)]
    if not mine:
        users = ", ".join(sorted({lease.owner.user for lease in leases}))
        raise NotPermitted(f"{name} is leased to {users}.", "Only its user or root may do that.")
    return mine if by_id else _of_the_asking_script(peer, name, mine, known)


# -------------------------------------------------------------------- whose script it is


def _of_the_asking_script(peer: Peer, device: str, leases: list[Lease], known: ReleaseProgress) -> list[Lease]:
    """A device may have passed to another script of the same user, which still works there."""
    found = [lease for lease in leases if not _is_of_process(lease, peer) or _is_ours(lease, known)]
    if not found:
        held = ", ".join(f"{lease.id} of process {lease.owner.pid}" for lease in leases)
        step = f"If it is to end, name it: `gpulease release {leases[0].id}`."
        raise UsageError(f"GPU {device} is held by another of your scripts ({held}).", step)
    return found


def _is_of_process(lease: Lease, peer: Peer) -> bool:
    """Whether it is held by a process of the client's own user."""
    return lease.owner.pid is not None and lease.owner.uid == peer.uid


def _is_ours(lease: Lease, known: ReleaseProgress) -> bool:
    """Whether its process is above the client's, or was started by the same shell or script."""
    pid = lease.owner.pid or 0
    return pid in known.above or ((known.script or 0) > 1 and known.scripts.get(pid) == known.script)


def _with_scripts(
    turn: Turn, peer: Peer, leases: Iterable[Lease], known: ReleaseProgress
) -> tuple[ReleaseProgress, bool]:
    """The processes that started the client and that hold these leases; and whether there are more to check."""
    owners = {lease.owner.pid or 0 for lease in leases if _is_of_process(lease, peer)}
    if owners and not known.above:
        known = known._replace(above=frozenset(turn.world.above(peer.pid)))
    unknown = sorted(owners - known.above - known.scripts.keys())
    if unknown and known.script is None:
        known = known._replace(script=turn.world.requesting_process(peer.pid))
    found = {pid: turn.world.requesting_process(pid) for pid in unknown[:SCRIPTS_PER_PIECE]}
    return known._replace(scripts={**known.scripts, **found}), len(unknown) > SCRIPTS_PER_PIECE


def _script(turn: Turn, peer: Peer, leases: Iterable[Lease], known: ReleaseProgress) -> int | None:
    """The process named as releasing: a command is gone in a moment, so name its script."""
    if known.script is not None or all(lease.owner.pid == peer.pid for lease in leases):
        return known.script
    return turn.world.requesting_process(peer.pid)
