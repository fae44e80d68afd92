"""Says of a job that is not there any more that `gpulease rebalance` moved it to another host, and its id there."""

from __future__ import annotations

import os

from gpulease.errors import NotFound
from gpulease.model.job_selection import job_number, selection
from gpulease.system import places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpulease.model.job_selection import Named

LONG_AGO = 7 * 86400.0  # seconds; who asks later has seen where the jobs are


def tell_moved(verb: str, named: Sequence[Named], since: float = LONG_AGO) -> None:
    """An error, if one of those that were named was moved; `all` are this user's."""
    if places.engine(os.environ) != places.LOCAL:
        return
    from gpulease.api.lease_verbs import events
    from gpulease.system.identity import user_name

    select = selection(named, required=False)
    spans = [(0, 1 << 62)] if "all" in select else select.get("ids", [])
    for event in events(since=since, user=user_name(os.getuid()), kind="job") if spans else ():
        number = job_number(event["id"])
        if event["what"] == "moved" and any(first <= number <= last for first, last in spans):
            new = (event["why"] or "").removeprefix("moved to ")
            raise NotFound(f"Job {number} was moved to {new} by `gpulease rebalance`.", f"Use `gpulease {verb} {new}`.")
