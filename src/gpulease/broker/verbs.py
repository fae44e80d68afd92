"""What each request of a client does. One function a verb; each either replies or raises."""

from __future__ import annotations

from collections.abc import Callable

from gpulease.broker import reports
from gpulease.broker.connection import Connection
from gpulease.broker.core import Core
from gpulease.broker.job_verbs import JOB_VERBS
from gpulease.broker.records import Asker, lease_document
from gpulease.errors import NotFound, NotPermitted, ProtocolError, TooMuch, UsageError
from gpulease.messages import KINDS, Message, check, read_request
from gpulease.model import Lease, Owner, Request, Waiting
from gpulease.selection import find
from gpulease.stores.base import Change, Event

MOST_WAITING = 2000  # requests of one user in the line
MOST_LEASES = 2000  # leases of one user
MOST_EVENTS = 10_000
NEEDS_DEVICES = {"add", "acquire", "release", "explain", "status", "exclude", "include"}


def handle(core: Core, connection: Connection, message: Message) -> None:
    """Check and do. What needs to know the devices waits for the first sample."""
    if not isinstance(message.get("do"), str):
        raise ProtocolError("The message does not say what to do.")
    verb = check(message)["do"]
    _refuse_surrogates(message)
    if verb in NEEDS_DEVICES and core.sample is None and (core.trouble is None or verb != "release"):
        core.after_sample(lambda: core.guarded(connection, lambda: VERBS[verb](core, connection, message)))
        return
    VERBS[verb](core, connection, message)


def _refuse_surrogates(message: Message) -> None:
    """Text that no encoding can carry must not get into what others are shown."""
    for value in message.values():
        texts = value.values() if isinstance(value, dict) else (value,)
        for text in texts:
            for part in text if isinstance(text, list) else (text,):
                if isinstance(part, str) and not part.isascii() and not part.isprintable():
                    try:
                        part.encode("utf-8", "surrogateescape")
                    except UnicodeEncodeError:
                        raise UsageError("The message has text that is not text.") from None


# -------------------------------------------------------------------- taking


def acquire(core: Core, connection: Connection, message: Message) -> None:
    token = message.get("id")
    if token and _resume(core, connection, token):
        return
    if core.sample is None and core.trouble is not None:
        raise core.trouble
    if message["kind"] not in KINDS:
        raise UsageError(f"There is no kind of lease {message['kind'][:40]!r}.")
    _check_limits(core, connection)
    request = _with_uuids(core, read_request(message["request"]))
    owner = _owner(core, connection, message, request)
    id = _next_id(core)
    now = core.now()
    wait = message.get("wait")
    waiting = Waiting(id, request, owner.user, owner.uid, core.since(), owner.groups, message["kind"])
    claim = owner.pid != connection.pid
    core.waiting_at[id] = connection
    core.asking.enter(Asker(waiting, owner, None if wait is None else now + wait, message.get("note"), claim, token))
    core.granting.replan()


def _resume(core: Core, connection: Connection, name: str) -> bool:
    """A client of a broker that is gone goes on waiting in its old place, or gets what it was granted there."""
    id = core.tokens.get((connection.uid, name), name)
    asker, lease = core.askers.get(id), core.leases.get(id)
    if asker is not None and asker.owner.uid == connection.uid:
        core.waiting_at[id] = connection
        core.edge.send(connection, {"waiting": {"id": id, "place": core.asking.place(id), "why": core.asking.why(id)}})
        return True
    if lease is not None and lease.owner.uid == connection.uid:
        if lease.owner.pid == connection.pid:
            core.unclaimed.discard(id)  # whoever asked is whoever holds: its end is watched
        elif id in core.unclaimed:
            core.waiting_at[id] = connection
        core.edge.send(connection, {"granted": core.granting.granted(lease)})
        return True
    return False


def _check_limits(core: Core, connection: Connection) -> None:
    uid = connection.uid
    if sum(asker.owner.uid == uid for asker in core.askers.values()) >= MOST_WAITING:
        raise TooMuch(f"You have {MOST_WAITING} requests in the line, and more are not taken.")
    if sum(lease.owner.uid == uid for lease in core.leases.values()) >= MOST_LEASES:
        raise TooMuch(f"You hold {MOST_LEASES} leases, and more are not given.")


def _with_uuids(core: Core, request: Request) -> Request:
    devices = list(core.devices.values())
    named = tuple(find(name, devices).uuid for name in request.devices)
    excluded = tuple(find(name, devices).uuid for name in request.exclude)
    return request._replace(devices=named, exclude=excluded)


def _owner(core: Core, connection: Connection, message: Message, request: Request) -> Owner:
    uid, user = connection.uid, connection.user
    base = Owner(uid, user, core.host, core.boot_id, groups=connection.groups)
    if message["kind"] == "reservation":
        if request.duration is None:
            raise UsageError("A reservation needs an end.", "Say how long, as --for 4h.")
        return base
    pid = connection.pid if message.get("owner") is None else message["owner"]
    start_time, owned_by = core.edge.identify(pid)
    if owned_by is not None and uid not in (0, owned_by):
        raise NotPermitted(f"Process {pid} belongs to another user.", "Name a process of your own.")
    if owned_by is None or not core.edge.watch(pid, start_time):
        raise NotFound(f"There is no process {pid}.", "Give the pid of a process that runs.")
    return base._replace(pid=pid, start_time=start_time)


def _next_id(core: Core) -> str:
    """Ids are never used twice; a block of them is put on disk at a time."""
    if core.number >= core.numbers_kept:
        core.commit([Change("facts", "number", {"value": core.number + 100})], [])
        core.numbers_kept = core.number + 100
    core.number += 1
    return f"L{core.number}"


def why(core: Core, connection: Connection, message: Message) -> None:
    id = message["id"]
    if id in core.askers:
        core.edge.send(connection, {"waiting": {"id": id, "place": core.asking.place(id), "why": core.asking.why(id)}})
    elif id not in core.leases:
        raise NotFound(f"The request {id[:40]!r} does not wait.", "Run `gpulease status` to see the line.")


def taken(core: Core, connection: Connection, message: Message) -> None:
    """The client has the lease in hand and can tell its owner."""
    lease = core.leases.get(message["id"])
    mine = lease is not None and lease.owner.uid == connection.uid
    if lease is not None and mine and lease.id in core.unclaimed:
        core.commit([Change("leases", lease.id, lease_document(lease))], [])
        core.unclaimed.discard(lease.id)
        core.waiting_at.pop(lease.id, None)
    core.edge.send(connection, {"ok": {"taken": mine}})


def cancel(core: Core, connection: Connection, message: Message) -> None:
    """Leave the line; or give back at once what was granted in the same moment."""
    id = _called(core, connection, message["id"])
    asker, lease = core.askers.get(id), core.leases.get(id)
    holder = asker or lease
    if holder is not None and holder.owner.uid not in (connection.uid,) and connection.uid != 0:
        raise NotPermitted(f"The request {id} belongs to {holder.owner.user}.")
    if asker is not None:
        core.asking.drop(id)
    elif lease is not None:
        core.holding.end([lease], "it was cancelled")
    core.edge.send(connection, {"ok": {"cancelled": holder is not None}})


def _called(core: Core, connection: Connection, name: str) -> str:
    """The id of a request that its client may know by its own name only."""
    named = [id for id, asker in core.askers.items() if asker.token == name and asker.owner.uid == connection.uid]
    return named[0] if named else core.tokens.get((connection.uid, name), name)


# -------------------------------------------------------------------- giving back


def release(core: Core, connection: Connection, message: Message) -> None:
    leases = _named_leases(core, connection, message.get("what") or [], bool(message.get("mine")))
    core.granting.give_back(leases, f"released by {connection.user}")
    core.granting.acknowledge(connection, {"ok": {"released": [_short(core, lease) for lease in leases]}})


def _named_leases(core: Core, connection: Connection, names: list[str], mine: bool) -> list[Lease]:
    found: dict[str, Lease] = {}
    if mine:
        uid = connection.uid
        found = {id: one for id, one in core.leases.items() if one.owner.uid == uid and one.kind != "job"}
    elif not names:
        raise UsageError("Nothing to release was named.", "Give a lease id, a device, or --mine.")
    for name in names:
        for lease in _leases_called(core, connection, name):
            found[lease.id] = lease
    return list(found.values())


def _leases_called(core: Core, connection: Connection, name: str) -> list[Lease]:
    if name in core.leases:
        leases = [core.leases[name]]
    elif name[:1] == "L" and name[1:].isdecimal():
        raise NotFound(f"There is no lease {name}.", "Run `gpulease status` to see the leases.")
    else:
        device = find(name, list(core.devices.values()))
        leases = [lease for lease in core.leases.values() if device.uuid in lease.devices]
        if not leases:
            raise NotFound(f"Device {device.label} is not leased.", "Run `gpulease status` to see the leases.")
    for lease in leases:
        if lease.kind == "job":
            raise UsageError(f"{name} belongs to job {lease.id[1:]}.", f"End it with `gpulease kill {lease.id[1:]}`.")
    mine = [lease for lease in leases if connection.uid in (0, lease.owner.uid)]
    if not mine:
        users = ", ".join(sorted({lease.owner.user for lease in leases}))
        raise NotPermitted(f"{name} is leased to {users}.", "Only its user or root may do that.")
    return mine


def _short(core: Core, lease: Lease) -> Message:
    return {"id": lease.id, "devices": core.labels(lease.devices), "user": lease.owner.user, "until": lease.until}


def renew(core: Core, connection: Connection, message: Message) -> None:
    names = message.get("what") or []
    leases = _named_leases(core, connection, names, not names)
    timed = [lease for lease in leases if lease.until is not None]
    if not timed:
        raise NotFound("There is no timed lease to renew.", "Only what was taken with --for ends by the clock.")
    until = core.now() + message["duration"]
    renewed = [lease._replace(until=until) for lease in timed]
    events = [core.event("renewed", lease, until=until) for lease in renewed]
    core.commit([Change("leases", lease.id, lease_document(lease)) for lease in renewed], events, durable=True)
    for lease in renewed:
        core.leases[lease.id] = lease
        core.alarm(until, "until", lease.id)
    core.edge.send(connection, {"ok": {"renewed": [_short(core, lease) for lease in renewed]}})


# -------------------------------------------------------------------- looking


def status(core: Core, connection: Connection, message: Message) -> None:
    core.after_sample(lambda: core.edge.send(connection, {"ok": reports.status(core, connection)}))


def explain(core: Core, connection: Connection, message: Message) -> None:
    core.edge.send(connection, {"ok": reports.explain(core, message["id"])})


def events(core: Core, connection: Connection, message: Message) -> None:
    since = 0.0 if message.get("since") is None else core.now() - message["since"]
    most = max(1, min(MOST_EVENTS, message.get("most") or 1000))
    rows = [{"time": event.time, "what": event.what, **event.fields} for event in core.store.events(since, most)]
    if core.settings.hide_commands and connection.uid != 0:
        rows = [row if row.get("user") == connection.user else _without_command(row) for row in rows]
    core.edge.send(connection, {"ok": {"events": rows}})


def _without_command(row: Message) -> Message:
    """Why a job ended may quote its command; that it ended, and how, is said before the colon."""
    why = row.get("why")
    if row.get("kind") != "job" or why is None:
        return row
    return {**row, "why": why.partition(":")[0] if why.startswith("job ") else None}


def ping(core: Core, connection: Connection, message: Message) -> None:
    core.edge.send(connection, {"ok": core.edge.about()})


# -------------------------------------------------------------------- managing


def exclude(core: Core, connection: Connection, message: Message) -> None:
    _only_managers(core, connection)
    devices = [find(name, list(core.devices.values())) for name in message["what"]]
    given = message.get("note")
    notes = {device.uuid: core.excluded.get(device.uuid, "") if given is None else given for device in devices}
    changes = [Change("excluded", uuid, {"note": note}) for uuid, note in notes.items()]
    events = [_managed(core, "excluded", connection, device.label, notes[device.uuid]) for device in devices]
    core.commit(changes, events, durable=True)
    core.excluded.update(notes)
    core.edge.send(connection, {"ok": {"excluded": [device.label for device in devices]}})
    core.granting.replan()


def include(core: Core, connection: Connection, message: Message) -> None:
    _only_managers(core, connection)
    devices = [find(name, list(core.devices.values())) for name in message["what"]]
    changes = [Change("excluded", device.uuid, None) for device in devices]
    core.commit(changes, [_managed(core, "included", connection, device.label, "") for device in devices], durable=True)
    for device in devices:
        core.excluded.pop(device.uuid, None)
    core.edge.send(connection, {"ok": {"included": [device.label for device in devices]}})
    core.granting.replan()


def stop(core: Core, connection: Connection, message: Message) -> None:
    _only_managers(core, connection)
    core.edge.send(
        connection, {"ok": {"leases": len(core.leases), "jobs": len(core.queue.running), "line": len(core.line)}}
    )
    core.edge.stop()


def _only_managers(core: Core, connection: Connection) -> None:
    if not core.edge.manages(connection.uid):
        raise NotPermitted("Only root and the user who runs the broker may do that.", "Ask one of them.")


def _managed(core: Core, what: str, connection: Connection, label: str, note: str) -> Event:
    return Event(core.now(), what, {"user": connection.user, "devices": [label], "note": note})


VERBS: dict[str, Callable[[Core, Connection, Message], None]] = {
    "acquire": acquire,
    "why": why,
    "taken": taken,
    "cancel": cancel,
    "release": release,
    "renew": renew,
    "explain": explain,
    "status": status,
    "events": events,
    "exclude": exclude,
    "include": include,
    "ping": ping,
    "stop": stop,
    **JOB_VERBS,
}
