"""PURE: leases and requests in the line as the documents that the store keeps, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gpulease.model.request import stored_request
from gpulease.model.store import Document
from gpulease.model.values import Lease, Owner, Waiting


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
