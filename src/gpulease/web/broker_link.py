"""Connections to the broker whose word a page repeats, and whose file the output of a job must be.

A page for others may be root's, and shows what root can read. So it believes only a broker that its own user runs, by
the kernel's word and at each connection: another's could name any file as somebody's output.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from gpulease.client.connection import Client
from gpulease.errors import NotPermitted
from gpulease.system.identity import uid_of, user_name


class BrokerLink(NamedTuple):
    for_others: bool = False  # --public or --user-header

    def open(self, start: bool = False) -> Client:
        client = Client(start)
        if self.for_others and client.broker_uid != os.geteuid():
            client.close()
            raise not_own(client.broker_uid)
        return client

    def log_owner(self, job: dict[str, Any]) -> int | None:
        """For others it is the account of the job's user, whom the viewer must be; None where there is none."""
        if self.for_others:
            return uid_of(job["user"])
        uid: int = job["uid"]
        return uid


def not_own(broker_uid: int) -> NotPermitted:
    runner = user_name(broker_uid)
    return NotPermitted(
        f"The broker is run by {runner}, so only {runner} may show it to others.",
        f"Start the page as {runner}; without --public and --user-header it is for you alone.",
    )
