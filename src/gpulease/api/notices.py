"""The verbs of notices, for the command line: where they go, of what, and whether that works.

The address stays in the user's own file. The broker is told which file that is, and which events.
"""

from __future__ import annotations

import os

from gpulease.client.connection import ask
from gpulease.errors import BrokerUnavailable, NotDelivered, NotFound, UsageError
from gpulease.model.notices import NONE, read_events
from gpulease.notices import address as own_file
from gpulease.notices.address import NoticeAddress, read_address
from gpulease.notices.channels import NO_SENDMAIL, Undelivered, apprise_of, deliver, sendmail
from gpulease.notices.words import trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def show() -> dict[str, Any]:
    """The address without its secret, of which events the broker tells, and how the last message fared."""
    path = own_file.path_of(os.environ)
    last = own_file.last(path) or {}
    return {"address": _shown(path), **_chosen(), "file": path, "last": last or None}


def _shown(path: str) -> str | None:
    try:
        return own_file.read(path).shown
    except NotFound:
        return None


def _chosen() -> dict[str, Any]:
    """A broker that does not run tells of nothing, and is not started to be asked."""
    try:
        return {"events": ask("notify", start=False)["events"]}
    except BrokerUnavailable:
        return {"events": None}


def choose(address: str | None, on: str | None) -> dict[str, Any]:
    """Another address, other events, or both."""
    path = own_file.path_of(os.environ)
    events = None if on is None else list(read_events(on, "--on")) or [NONE]
    found = own_file.read(path) if address is None else _checked(address)
    ask("notify", file=path, events=events)  # first: where it refuses, nothing is written
    if address is not None:
        own_file.write(path, found)
    return {**show(), "warning": cannot_send()}


def _checked(text: str) -> NoticeAddress:
    found = read_address(text)
    if found.kind == "apprise":
        try:
            apprise_of(found)
        except Undelivered as trouble:
            scheme = found.text.partition(":")[0]
            step = "Give mailto:…, https://… or tty, or another address of Apprise's."
            raise UsageError(f"A {scheme}:// address cannot be used: {trouble.why}.", step) from None
    return found


def cannot_send() -> str | None:
    """Why nothing that is sent to the address can leave this machine, as far as that is seen without sending."""
    mail = own_file.read(own_file.path_of(os.environ)).kind == "mail"
    return NO_SENDMAIL if mail and sendmail() is None else None


def clear() -> bool:
    """Whether there was an address."""
    there = own_file.remove(own_file.path_of(os.environ))
    try:
        ask("notify", start=False, clear=True)
    except BrokerUnavailable:
        pass  # it finds no address when it looks for one
    return there


def test() -> str:
    """Send one now, from this process; where it went. Raises NotDelivered, which tells why not."""
    path = own_file.path_of(os.environ)
    address = own_file.read(path)
    try:
        deliver(address, trial(os.uname().nodename))
    except Undelivered as trouble:
        raise NotDelivered(f"The notice was not delivered to {address.shown}: {trouble.why}.") from None
    own_file.write_test(path)
    return address.shown
