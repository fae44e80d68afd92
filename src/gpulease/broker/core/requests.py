"""Clients that ask for a lease: how they enter and leave the queue, and what they hear meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulease.broker.core import learned, leases
from gpulease.broker.core.events import ProcessEnded, Received
from gpulease.broker.core.grants import current_plan
from gpulease.broker.core.leases import LeaseStep
from gpulease.broker.core.limits import allowance, check_request, check_reservation, refused
from gpulease.broker.core.state.requests import Pending
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Checking, Refused
from gpulease.errors import (
    Cancelled,
    GpuleaseError,
    NotFound,
    NotGranted,
    NotPermitted,
    TooMuch,
    UsageError,
)
from gpulease.model.device_selection import resolve
from gpulease.model.job_selection import job_number
from gpulease.model.peer import Peer
from gpulease.model.request import read_request
from gpulease.model.values import Owner, Waiting
from gpulease.planner.device_states import DRAINING, LOST, OUTSIDE
from gpulease.planner.forecast import NO_FORECAST, Forecast
from gpulease.planner.reasons import NEVER, UNAVAILABLE, fitted
from gpulease.protocol.messages import KINDS, AcquireRequest, CancelledWait, LeaseRequest, Taken

TEMPORARY = (OUTSIDE, DRAINING, LOST, "memory")  # what may have ended since the devices were seen
MAX_WAITING = 2000  # requests of one user in the line

# -------------------------------------------------------------------- asking


def acquire(turn: Turn, event: Received[AcquireRequest]) -> None:
    peer = event.peer
    message = event.message
    state = turn.state
    token = message.get("id")
    if token and _resume(turn, event, token):
        return
    if state.devices.sample is None and state.devices.trouble is not None:
        raise state.devices.trouble
    if message["kind"] not in KINDS:
        raise UsageError(f"There is no kind of lease {message['kind'][:40]!r}.")
    _check_limits(turn, peer)
    request = resolve(read_request(message["request"]), list(state.devices.by_uuid.values()))
    limit = allowance(state, peer.user, peer.groups)
    check_request(limit, request)
    if message["kind"] == "reservation":
        check_reservation(limit, request.duration)
    owner = _owner(turn, peer, message)
    wait = message.get("wait")
    kind, command = message["kind"], message.get("command") or ()
    waiting = Waiting(
        state.requests.next_lease_id(), request, owner.user, owner.uid, state.requests.since(turn.now), owner.groups,
        kind, shape=learned.shape(turn, owner.user, command, "", request, kind),
        expected=learned.expected(turn, owner.user, request),
    )  # fmt: skip
    deadline = None if wait is None else turn.now + wait
    state.requests.listeners.put(waiting.id, peer)
    note, within = message.get("note"), message.get("within")
    above = state.requests.leases.get(within or "")
    within = within if above is not None and above.owner.uid == peer.uid else None
    leases.ask(turn, Pending(waiting, owner, deadline, note, owner.pid != peer.pid, token, within))


def _resume(turn: Turn, event: Received[Any], name: str) -> bool:
    """A client of a broker that is gone goes on waiting in its old place, or gets what it was granted there."""
    state, peer = turn.state, event.peer
    id = state.requests.tokens.get((peer.uid, name), name)
    pending, lease = state.requests.pending.get(id), state.requests.leases.get(id)
    if pending is not None and pending.owner.uid == peer.uid:
        state.requests.listeners.put(id, peer)
        _send_place(turn, peer, id)
        return True
    if lease is not None and lease.owner.uid == peer.uid:
        if id in state.requests.unclaimed:
            state.requests.listeners.put(id, peer)
        if state.devices.sample is None:  # nobody could say which devices these are
            state.requests.resuming = (*state.requests.resuming, event)
            turn.send(peer, {"waiting": {"id": id, "place": 1, "why": why(turn, id)}})
            leases.schedule_sample(turn)
            return True
        if id in state.requests.unclaimed and lease.owner.pid == peer.pid:
            leases.claim(turn, lease)  # whoever asked is whoever holds: its end is watched
        turn.send(peer, {"granted": leases.granted(state, lease)})
        return True
    return False


def resume(turn: Turn) -> None:
    """The first sample came: clients with earlier grants may hear of them."""
    waiting = turn.state.requests.resuming
    turn.state.requests.resuming = ()
    for event in waiting:
        _resume(turn, event, event.message["id"])


def _send_place(turn: Turn, peer: Peer, id: str) -> None:
    turn.send(peer, {"waiting": {"id": id, "place": place(turn, id), "why": why(turn, id)}})


def _check_limits(turn: Turn, peer: Peer) -> None:
    if sum(pending.owner.uid == peer.uid for pending in turn.state.requests.pending.values()) >= MAX_WAITING:
        raise TooMuch(f"You have {MAX_WAITING} requests in the queue, which is the most allowed.")


def _owner(turn: Turn, peer: Peer, message: AcquireRequest) -> Owner:
    """A process; or the user, for a reservation, which ends by the clock or when it is released."""
    about = turn.state.about
    base = Owner(peer.uid, peer.user, about.host, about.boot_id, groups=peer.groups)
    if message["kind"] != "reservation":
        pid, start_time = _process(turn, peer, message.get("owner"))
        return base._replace(pid=pid, start_time=start_time)
    try:
        return base._replace(asked_by=_process(turn, peer, message.get("owner")))
    except (NotFound, NotPermitted):  # out of sight, or root's: it is needed for nothing but to be shown
        return base


def _process(turn: Turn, peer: Peer, named: int | None) -> tuple[int, int | None]:
    """Pid and start time of the process that a client named, or of the client."""
    pid, start_time, owned_by = turn.world.identify(peer.pid, named)
    if not pid:
        what = f"The broker does not see process {named or ''}: it is in a pid namespace of its own, as in a container."
        raise NotFound(what, "Use `gpulease run`, or `gpulease get --for TIME`; or share the host's pid namespace.")
    if owned_by is not None and peer.uid not in (0, owned_by):
        raise NotPermitted(f"Process {pid} belongs to another user.", "Name a process of your own.")
    if owned_by is None:
        raise NotFound(f"There is no process {pid}.", "Give the pid of a process that runs.")
    return pid, start_time


def ask_why(turn: Turn, event: Received[LeaseRequest]) -> None:
    id, requests = event.message["id"], turn.state.requests
    if id in requests.pending:
        _send_place(turn, event.peer, id)
    elif requests.listeners.get(id) is not event.peer:  # else that it was granted is on its way, and is the answer
        held = "is granted" if id in requests.leases else "does not wait"
        raise NotFound(f"The request {id[:40]!r} {held}.", "Run `gpulease status` to see the queue.")


def taken(turn: Turn, event: Received[LeaseRequest]) -> None:
    """The client has the lease in hand and can tell its owner."""
    lease = turn.state.requests.leases.get(event.message["id"])
    mine = lease is not None and lease.owner.uid == event.peer.uid
    if lease is not None and mine and lease.id in turn.state.requests.unclaimed:
        leases.claim(turn, lease)
    turn.reply(event.peer, Taken(taken=mine))


def cancel(turn: Turn, event: Received[LeaseRequest]) -> None:
    """Leave the line; or give back at once what was granted in the same moment."""
    peer, state = event.peer, turn.state
    id = _called(turn, peer, event.message["id"])
    pending, lease = state.requests.pending.get(id), state.requests.leases.get(id)
    holder = pending or lease
    if holder is not None and peer.uid not in (0, holder.owner.uid):
        raise NotPermitted(f"The request {id} belongs to {holder.owner.user}.")
    if pending is not None:
        leases.leave(turn, id)
    elif lease is not None and lease.kind == "job":
        raise UsageError(f"{id} belongs to job {job_number(id)}.", f"End it with `gpulease kill {job_number(id)}`.")
    elif lease is not None:
        leases.end(turn, lease, "it was cancelled", cut=True)
    turn.reply(peer, CancelledWait(cancelled=holder is not None))


def _called(turn: Turn, peer: Peer, name: str) -> str:
    """The id of a request that its client may know by its own name only."""
    pending = turn.state.requests.pending.values()
    named = [one.id for one in pending if one.token == name and one.owner.uid == peer.uid]
    return named[0] if named else turn.state.requests.tokens.get((peer.uid, name), name)


# -------------------------------------------------------------------- being answered


def answer(turn: Turn) -> None:
    """Refuse each request that was not granted at once, or write it to disk and say why it waits."""
    state = turn.state
    if not state.requests.unwritten or isinstance(state.devices.check, Checking):
        return None
    if turn.stale() and state.devices.trouble is None:
        return turn.take_sample()
    if state.devices.sample is None:
        return refuse_unwritten(turn, state.devices.trouble or NotGranted("No GPU has been seen yet."))
    if current_plan(turn).grants and state.devices.trouble is None and not _is_refused(turn):
        return None
    undecided = {id for id in state.requests.unwritten if _needs_sample(turn, id)}
    for id in [id for id in state.requests.unwritten if id not in undecided]:
        _answer(turn, id)
    if undecided:
        turn.take_sample()
    return None


def _needs_sample(turn: Turn, id: str) -> bool:
    """Whether it does not wait, and would be refused for what was seen before it came and may have changed."""
    devices, deadline = turn.state.devices, turn.state.requests.pending[id].deadline
    if deadline is None or deadline > turn.now or devices.sampled_from >= deadline or devices.trouble is not None:
        return False
    decided = current_plan(turn)
    if any(grant.id == id for grant in decided.grants) or decided.reason(id).code in NEVER:
        return False
    return any(verdict.code in TEMPORARY for verdict in decided.explain(id))


def _is_refused(turn: Turn) -> bool:
    check = turn.state.devices.check
    return isinstance(check, Refused) and turn.now >= check.shown_from


def _answer(turn: Turn, id: str) -> None:
    deadline = turn.state.requests.pending[id].deadline
    code, sentence = reason(turn, id)[:2]
    if code in NEVER:
        step = "Ask for less; `gpulease status` shows what is here."
        leases.refuse(turn, id, refused(current_plan(turn).reason(id), step))
    elif deadline is not None and deadline <= turn.now:
        leases.refuse(turn, id, NotGranted(f"Not granted: {_lower(sentence)}", _next_step(turn, code)))
    else:
        leases.advance(turn, "wait", LeaseStep(id, why=sentence))


def refuse_unwritten(turn: Turn, trouble: GpuleaseError) -> None:
    for id in list(turn.state.requests.unwritten):
        leases.refuse(turn, id, trouble)


class Why(NamedTuple):
    """Why a request waits, in words for people."""

    code: str
    sentence: str
    short: str
    forecast: Forecast = NO_FORECAST

    @property
    def moments(self) -> dict[str, float | None]:
        """When it should start."""
        return dict(self.forecast.moments)


def reason(turn: Turn, id: str) -> Why:
    """The planner's own reason, or what keeps the planner from being heard."""
    trouble, check = turn.state.devices.trouble, turn.state.devices.check
    if trouble is not None:
        return Why(trouble.code, trouble.what, fitted(trouble.code.replace("-", " ")))
    if turn.state.devices.sample is None:
        return Why("checking", "gpulease has not checked the GPUs yet.", "GPUs not seen yet")
    decided = current_plan(turn)
    try:
        found = decided.reason(id)
    except KeyError:
        refusal = check.why if isinstance(check, Refused) else None
        return Why("checking", refusal or "It fits. gpulease is checking its GPUs once more.", "GPUs being checked")
    forecast, basis = decided.forecast(id)
    learned.record_forecast(turn, id, forecast, basis)
    return Why(found.code, found.sentence, found.short, forecast)


def why(turn: Turn, id: str) -> str:
    return reason(turn, id).sentence


def place(turn: Turn, id: str) -> int:
    return 1 + turn.state.requests.line.ahead(id)


def _next_step(turn: Turn, code: str) -> str | None:
    """Waiting longer helps if the devices are in use, not if this machine has none that match."""
    if turn.state.devices.trouble is not None:
        return turn.state.devices.trouble.next_step
    return "See `gpulease status`." if code == UNAVAILABLE else None


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# -------------------------------------------------------------------- what happens to them


def deadline(turn: Turn, id: str) -> None:
    pending = turn.state.requests.pending.get(id)
    if pending is not None and pending.deadline is not None and pending.deadline <= turn.now:
        code, sentence = reason(turn, id)[:2]
        leases.refuse(turn, id, NotGranted(f"Not granted in time: {_lower(sentence)}", _next_step(turn, code)))


def client_gone(turn: Turn, peer: Peer) -> None:
    """Requests of that connection leave the line. Leases that were granted and never claimed end."""
    state = turn.state
    state.requests.resuming = tuple(event for event in state.requests.resuming if event.peer is not peer)
    for id in [id for id, listener in state.requests.listeners.items() if listener is peer]:
        if id in state.requests.pending:
            leases.leave(turn, id)
        elif id in state.requests.unclaimed:
            leases.end(turn, state.requests.leases[id], "its client left before it took it", cut=True)


def owner_gone(turn: Turn, event: ProcessEnded) -> None:
    state = turn.state
    leases.drained(turn, event.key)
    for id in sorted(state.requests.owned.get(event.key, ())):
        if id in state.requests.pending:
            leases.refuse(turn, id, Cancelled("The process that it was for has ended."))
        elif (lease := state.requests.leases.get(id)) is not None:
            before = event.already and lease.since < state.about.began
            leases.end(turn, lease, f"its process ended{' while no broker ran' if before else ''}")


def unclaimed(turn: Turn, id: str) -> None:
    """The client of a broker that is gone did not come back."""
    state = turn.state
    if id in state.requests.listeners:
        return
    if id in state.requests.unclaimed:
        leases.end(turn, state.requests.leases[id], "no client came to take it", cut=True)
    elif id in state.requests.pending:
        leases.leave(turn, id)


def lease_expired(turn: Turn, id: str) -> None:
    lease = turn.state.requests.leases.get(id)
    if lease is not None and lease.until is not None and lease.until <= turn.now:
        limited = lease.owner.pid is not None  # else it was asked for
        why = "the longest-lease of its user was over" if limited else "its time was over"
        leases.end(turn, lease, why, cut=True)
