"""What each request about leases, devices and the broker itself does. One function a verb; it replies or raises."""

from __future__ import annotations

from collections.abc import Callable

from gpulease.broker.core import bulk, history, job_verbs, notices, releases, requests, subscriptions
from gpulease.broker.core import learned as core_learned
from gpulease.broker.core import status as core_status
from gpulease.broker.core.add import check_user
from gpulease.broker.core.events import Listing, Received
from gpulease.broker.core.instructions import FreezeState, Stop, UnfreezeState
from gpulease.broker.core.limits import unknown_names
from gpulease.broker.core.order import trouble_of
from gpulease.broker.core.releases import only_managers
from gpulease.broker.core.status import estimate_starts
from gpulease.broker.core.turn import FRESH_FOR, Turn
from gpulease.errors import NotPermitted, ProtocolError, TooMuch, UsageError
from gpulease.model.device_selection import find
from gpulease.model.peer import Peer
from gpulease.model.store import Document
from gpulease.model.values import Device
from gpulease.planner import settings
from gpulease.protocol.check import check
from gpulease.protocol.messages import (
    BackedUp,
    BackupRequest,
    DevicesRequest,
    EventsRequest,
    Excluded,
    ExplainRequest,
    Included,
    Learned,
    LearnedRequest,
    NotifyRequest,
    SetRequest,
    Stopped,
)  # fmt: skip
from gpulease.render.hidden import of_event, viewer

MAX_EVENTS = 10_000
EVENTS, LINES = 400, 300  # of one piece
LONGEST_BACKUP = 600.0  # seconds for a copy
NEEDS_DEVICES = {"add", "edit", "start", "acquire", "release", "explain", "status", "subscribe", "exclude", "include"}


def handle(turn: Turn, event: Received) -> None:
    """Check and do. What needs to know the devices waits for the first sample."""
    message, state = event.message, turn.state
    if not isinstance(message.get("do"), str):
        raise ProtocolError("The message does not say what to do.")
    if event.progress is not None:
        return VERBS[message["do"]](turn, event)  # it was checked when it began
    if any(waiting.peer is event.peer for waiting in state.devices.awaiting):
        return turn.after_sample(event)  # answers come in the order of the questions
    verb = check(message)["do"]
    if verb in NEEDS_DEVICES and state.devices.sample is None and not _failed_lately(turn):
        return turn.after_sample(event)
    return VERBS[verb](turn, event)


def _failed_lately(turn: Turn) -> bool:
    """Whether the driver failed to answer a moment ago: then it is not asked again for each new client."""
    return turn.state.devices.trouble is not None and turn.now - turn.state.devices.failed_at <= FRESH_FOR


# -------------------------------------------------------------------- looking


def status(turn: Turn, event: Received) -> None:
    if event.progress is None and turn.stale() and not _failed_lately(turn):
        return turn.after_sample(event)
    seen_by = viewer(turn.state.settings, event.peer)
    listing = event.progress
    if not isinstance(listing, Listing):
        if seen_by not in turn.status:
            turn.status[seen_by] = core_status.status(turn, seen_by)  # the same for all who ask in one turn
        listing = Listing(
            [entry.id for entry in turn.state.requests.line.front(core_status.MAX_LINES)], turn.status[seen_by]
        )
    return bulk.show(turn, event, "line", listing, lambda id: core_status.line_row(turn, id, seen_by), LINES)


def explain(turn: Turn, event: Received) -> None:
    """Of what waits, by its id; or of a request that nobody has made."""
    message: ExplainRequest = event.message
    if message.get("request") is not None:
        if turn.stale() and not _failed_lately(turn):
            return turn.after_sample(event)
        return turn.send(event.peer, {"ok": estimate_starts(turn, event)})
    id = message.get("id")
    if id is None:
        raise UsageError("Nothing to explain was named.", "Give the id of what waits, or a request.")
    return turn.reply(event.peer, core_status.explain(turn, id, viewer(turn.state.settings, event.peer)))


def events(turn: Turn, event: Received) -> None:
    peer, store = event.peer, turn.state.store
    message: EventsRequest = event.message
    back = message.get("since")
    since = 0.0 if back is None else turn.now - back
    most = max(1, min(MAX_EVENTS, message.get("most") or 1000))
    listing = event.progress
    if not isinstance(listing, Listing):
        listing = Listing(store.event_numbers(since, most), {})
    bulk.show(turn, event, "events", listing, lambda number: _event_row(turn, number, peer), EVENTS)


def _event_row(turn: Turn, number: int, peer: Peer) -> Document | None:
    record = turn.state.store.event(number)
    if record is None:  # it was forgotten meanwhile
        return None
    return of_event({"time": record.time, "what": record.what, **record.fields}, viewer(turn.state.settings, peer))


def ping(turn: Turn, event: Received) -> None:
    turn.send(event.peer, {"ok": turn.state.describe(turn.now)})


# -------------------------------------------------------------------- managing


def exclude(turn: Turn, event: Received) -> None:
    only_managers(turn, event.peer)
    message: DevicesRequest = event.message
    devices, given = _named_devices(turn, event), message.get("note")
    for device in devices:
        note = turn.state.devices.excluded.get(device.uuid, "") if given is None else given
        turn.state.devices.exclude(device.uuid, note)
        turn.state.record(turn.now, "excluded", user=event.peer.user, devices=[device.label], note=note)
    turn.reply(event.peer, Excluded(excluded=[device.label for device in devices]))


def include(turn: Turn, event: Received) -> None:
    only_managers(turn, event.peer)
    devices = _named_devices(turn, event)
    for device in devices:
        turn.state.devices.exclude(device.uuid, None)
        turn.state.record(turn.now, "included", user=event.peer.user, devices=[device.label], note="")
    turn.reply(event.peer, Included(included=[device.label for device in devices]))


def _named_devices(turn: Turn, event: Received) -> list[Device]:
    message: DevicesRequest = event.message
    devices = list(turn.state.devices.by_uuid.values())
    return [find(name, devices) for name in message["what"]]


def set_parameter(turn: Turn, event: Received) -> None:
    message: SetRequest = event.message
    asked, text = message.get("name"), message.get("value")
    name = None if asked is None else settings.find(asked)
    if name is not None and text is not None:
        _set(turn, event.peer, name, text)
    state = turn.state
    rows = settings.shown(state.settings, state.policy, state.texts, state.config, state.manages(event.peer.uid))
    for row in rows:
        row["warnings"] = _warnings(turn, row["name"]) if name in (None, row["name"]) else []
    turn.reply(event.peer, {"parameters": [row for row in rows if name in (None, row["name"])]})


def _warnings(turn: Turn, name: str) -> list[str]:
    if name == "limits":
        return unknown_names(turn)
    trouble = trouble_of(turn.state.requests.custom_order) if name == "policy.order" else None
    return [] if trouble is None else [f"{trouble} The built-in order goes on."]


def _set(turn: Turn, peer: Peer, name: str, text: str) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may set parameters.", "Ask one of them.")
    if not settings.PARAMETERS[name].by_set:
        step = "Write it there, and send the broker SIGHUP."
        raise NotPermitted(f"{name} is code that the broker runs: it is set in the config file only.", step)
    if text != "default":
        settings.parse(name, text)
    turn.state.write_setting(name, None if text == "default" else text)


def stop(turn: Turn, event: Received) -> None:
    only_managers(turn, event.peer)
    state = turn.state
    ending = sum(job.ending is not None for job in state.jobs.running.values())
    jobs = len(state.jobs.running)
    turn.reply(
        event.peer, Stopped(leases=len(state.requests.leases), jobs=jobs, ending=ending, line=len(state.requests.line))
    )
    turn.emit(Stop())


def notify(turn: Turn, event: Received) -> None:
    """A user needs an agent to get notices, as for jobs."""
    message: NotifyRequest = event.message
    if message.get("file") is not None:
        check_user(turn, event.peer, "send notices for", "Ask")
    notices.notify(turn, event)


def learned(turn: Turn, event: Received) -> None:
    """Of who asks, and of nobody else."""
    message: LearnedRequest = event.message
    user = event.peer.user
    gone = core_learned.forget(turn, user) if message.get("clear") else None
    known = Learned(shapes=core_learned.rows(turn, user), starts=core_learned.accuracy(turn))
    turn.reply(event.peer, known if gone is None else {**known, "forgotten": gone})


def backup(turn: Turn, event: Received) -> None:
    """The state's file stays as it is while a client copies it; what is committed meanwhile is in the log beside it.

    The client's connection, or ten minutes, bound how long.
    """
    state, peer = turn.state, event.peer
    if not state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may copy its state.", "Ask one of them.")
    message: BackupRequest = event.message
    if message.get("done"):
        held = state.backup is not None and state.backup[0] is peer
        end_backup(turn, peer)
        return turn.reply(peer, BackedUp(held=held))
    if state.backup is not None:
        raise TooMuch("Another copy of the state is being made.", "Try again when it is done.")
    number = f"{turn.now}"
    state.backup = (peer, number)
    turn.alarm(LONGEST_BACKUP, "backup", number)
    return turn.emit(FreezeState(peer))


def end_backup(turn: Turn, peer: Peer) -> None:
    if turn.state.backup is not None and turn.state.backup[0] is peer:
        turn.state.backup = None
        turn.emit(UnfreezeState())


def backup_too_long(turn: Turn, number: str) -> None:
    if turn.state.backup is not None and turn.state.backup[1] == number:
        end_backup(turn, turn.state.backup[0])


VERBS: dict[str, Callable[[Turn, Received], None]] = {
    "acquire": requests.acquire,
    "why": requests.ask_why,
    "taken": requests.taken,
    "cancel": requests.cancel,
    "release": releases.release,
    "renew": releases.renew,
    "explain": explain,
    "status": status,
    "subscribe": subscriptions.subscribe,
    "events": events,
    "learned": learned,
    "history": history.history,
    "usage": history.usage,
    "totals": history.totals,
    "exclude": exclude,
    "include": include,
    "notify": notify,
    "ping": ping,
    "set": set_parameter,
    "stop": stop,
    "backup": backup,
    **job_verbs.JOB_VERBS,
}
