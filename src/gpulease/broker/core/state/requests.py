"""Everything that asks for devices or has them: the queue, the requests of clients, the leases; and their documents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gpulease.broker.core.events import ProcessKey, Received
from gpulease.broker.core.state.devices import Devices, Ended
from gpulease.broker.core.state.tables import Changes, Part, Table, cell, cell_of, table
from gpulease.broker.core.values import CustomOrder
from gpulease.model.peer import Peer
from gpulease.model.request import stored_request
from gpulease.model.store import Document, Store
from gpulease.model.values import Cause, Lease, Owner, Waiting
from gpulease.planner import Line, Policy


class Pending(NamedTuple):
    """A client's request that is not granted, with all that the planner does not need to know."""

    waiting: Waiting
    owner: Owner
    deadline: float | None = None  # when it is no longer wanted
    note: str | None = None
    claim: bool = False  # the lease must be claimed by the client, since its owner is another process
    token: str | None = None  # the client's own name for it, by which it is found after a restart
    within: str | None = None  # the lease in which its client runs, which does not end before it is granted

    @property
    def id(self) -> str:
        return self.waiting.id


def lease_document(
    lease: Lease, claimed: bool = True, token: str | None = None, labels: Iterable[str] = ()
) -> Document:
    more = {"claimed": claimed, "token": token, "labels": list(labels)}
    return {**lease._asdict(), "owner": lease.owner._asdict(), **more}


def read_lease(document: Document) -> tuple[Lease, bool]:
    fields = dict(document)
    claimed = bool(fields.pop("claimed", True))
    fields["owner"] = read_owner(fields["owner"])
    fields["devices"] = tuple(fields["devices"])
    fields["outsiders"] = tuple((pid, start_time) for pid, start_time in fields.get("outsiders", ()))
    return Lease(**_known(Lease, fields)), claimed


def pending_document(pending: Pending) -> Document:
    waiting = {**pending.waiting._asdict(), "request": pending.waiting.request._asdict()}
    return {**pending._asdict(), "waiting": waiting, "owner": pending.owner._asdict()}


def read_pending(document: Document) -> Pending:
    waiting = dict(document["waiting"])
    waiting["request"] = stored_request(waiting["request"])
    waiting["groups"] = tuple(waiting.get("groups", ()))
    fields = {**document, "waiting": Waiting(**_known(Waiting, waiting)), "owner": read_owner(document["owner"])}
    return Pending(**_known(Pending, fields))


def read_owner(document: Document) -> Owner:
    groups, asked_by = document.get("groups", ()), document.get("asked_by")
    fields = {**document, "groups": tuple(groups), "asked_by": asked_by and tuple(asked_by)}
    return Owner(**_known(Owner, fields))


def _known(kind: Any, fields: Document) -> Document:
    """Without fields that another version wrote and this one does not know."""
    return {name: value for name, value in fields.items() if name in kind._fields}


NUMBERS = 100  # ids of leases that are put on disk at a time


class Requests(Part):
    leases: Table[str, Lease] = table(planned=True)
    line: Line = cell_of(lambda: Line(Policy()))
    custom_order: CustomOrder = cell(CustomOrder(), planned=lambda own: own.ranking)
    wall_ahead: float = cell(0.0)  # seconds that the wall clock is ahead of the broker's time
    pending: Table[str, Pending] = table()
    unwritten: Table[str, None] = table()  # pending, and neither on disk nor told to anybody
    listeners: Table[str, Peer] = table()  # by id of a request or an unclaimed lease
    unclaimed: Table[str, None] = table()
    tokens: Table[tuple[int, str], str] = table()  # requests by user and the client's own name
    owned: Table[ProcessKey, frozenset[str]] = table()  # leases and requests, by the process they end with
    resuming: tuple[Received[Any], ...] = cell(())  # messages of clients whose lease a former broker granted
    number: int = cell(0)  # of the last lease
    numbers_kept: int = cell(0)  # up to which they are on disk
    last_since: float = cell(0.0)

    def __init__(self, store: Store, changes: Changes, devices: Devices) -> None:
        super().__init__(store, changes)
        self._devices: Devices
        self._put("_devices", devices)

    # ---------------------------------------------------------------- the line

    def enter_line(self, waiting: Waiting) -> None:
        """In the queue `not_before` is in the broker's time. A request with a time of day means the wall clock."""
        self._put_in_line(_sooner(waiting, self.wall_ahead))

    def fill_line(self, many: list[Waiting]) -> None:
        """When the broker starts: the requests that may start at any time."""
        self.line.fill(many)
        self.changes.revision += 1

    def step_clock(self, wall_ahead: float) -> None:
        """The wall clock was set: requests for a time of it start earlier or later. Nothing else moves."""
        step = wall_ahead - self.wall_ahead
        self.wall_ahead = wall_ahead
        for waiting in [one for one in self.line if one.request.not_before is not None]:
            self.leave_line(waiting.id)
            self._put_in_line(_sooner(waiting, step))

    def _put_in_line(self, waiting: Waiting) -> None:
        self.line.add(waiting)
        self.changes.add(self.line.remove, waiting.id)
        self.changes.revision += 1

    def leave_line(self, id: str) -> None:
        waiting = self.line.remove(id)
        self.changes.add(self.line.add, waiting)
        self.changes.revision += 1

    def block(self, id: str, why: Cause | None) -> None:
        """Another reason why it may not be granted yet."""
        waiting = self.line[id]
        self.leave_line(id)
        self._put_in_line(waiting._replace(blocked=why))

    def since(self, now: float) -> float:
        """Now, and later than every earlier arrival."""
        self.last_since = max(now, self.last_since + 1e-6)
        return self.last_since

    # ---------------------------------------------------------------- requests

    def next_lease_id(self) -> str:
        """Ids are never used twice; a block of them is put on disk at a time."""
        if self.number >= self.numbers_kept:
            self.numbers_kept = self.number + NUMBERS
            self.store.write("facts", "number", {"value": self.numbers_kept})
        self.number += 1
        return f"L{self.number}"

    def enter(self, pending: Pending, written: bool) -> None:
        """A request into the queue. A new one is on disk only when it really has to wait."""
        self.pending.put(pending.id, pending)
        self.enter_line(pending.waiting)
        self._own(pending.owner, pending.id)
        if not written:
            self.unwritten.put(pending.id, None)
        elif pending.token:
            self.tokens.put((pending.owner.uid, pending.token), pending.id)

    def write_pending(self, id: str) -> None:
        self.store.write("line", id, pending_document(self.pending[id]))
        self.unwritten.drop(id)

    def withdraw(self, id: str) -> Pending:
        """A request out of the queue, granted or not."""
        pending = self.pending[id]
        if id not in self.unwritten:
            self.store.write("line", id, None)
        self.unwritten.drop(id)
        self.pending.drop(id)
        self.leave_line(id)
        self._disown(pending.owner, id)
        return pending

    def _own(self, owner: Owner, id: str) -> None:
        if owner.pid is not None:
            key = (owner.pid, owner.start_time)
            self.owned.put(key, self.owned.get(key, frozenset()) | {id})

    def _disown(self, owner: Owner, id: str) -> None:
        if owner.pid is None:
            return
        key = (owner.pid, owner.start_time)
        left = self.owned.get(key, frozenset()) - {id}
        if left:
            self.owned.put(key, left)
        else:
            self.owned.drop(key)

    # ---------------------------------------------------------------- leases

    def hold(self, lease: Lease, claimed: bool = True, token: str | None = None) -> None:
        """A new lease, or one that was loaded; its devices must be looked at again before anybody else gets them."""
        self.leases.put(lease.id, lease)
        self._devices.lease_began(lease.devices)
        self._own(lease.owner, lease.id)
        if not claimed:
            self.unclaimed.put(lease.id, None)
        if token:
            self.tokens.put((lease.owner.uid, token), lease.id)

    def write_lease(self, lease: Lease, claimed: bool = True, token: str | None = None) -> None:
        self.store.write("leases", lease.id, lease_document(lease, claimed, token, self._devices.labels(lease.devices)))
        self.changes.durable = self.changes.durable or lease.kind == "reservation" or lease.until is not None

    def change_lease(self, lease: Lease) -> None:
        """Of a job, which nobody has to claim."""
        self.leases.put(lease.id, lease)
        self.write_lease(lease)

    def claim(self, id: str) -> None:
        """The client that the lease is for has heard of it."""
        self.unclaimed.drop(id)
        self.listeners.drop(id)

    def end_lease(self, lease: Lease, mark: Ended) -> None:
        self.store.write("leases", lease.id, None)
        self.leases.drop(lease.id)
        self.unclaimed.drop(lease.id)
        self.listeners.drop(lease.id)
        self._devices.lease_ended(lease.devices, mark)
        self._disown(lease.owner, lease.id)


def _sooner(waiting: Waiting, seconds: float) -> Waiting:
    start = waiting.request.not_before
    if start is None or waiting.request.relative or not seconds:
        return waiting
    return waiting._replace(request=waiting.request._replace(not_before=start - seconds))
