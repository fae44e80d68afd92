"""What a click does: the same verbs as on the command line, about one job of the viewer's own."""

from __future__ import annotations

from typing import Any

from gpulease.errors import NotPermitted, UsageError
from gpulease.model.job_selection import one_job
from gpulease.web.broker_link import BrokerLink
from gpulease.web.buttons import ACTIONS
from gpulease.web.job_watch import ask_for_job
from gpulease.web.picture import Viewer


def act(link: BrokerLink, action: str, id: int, viewer: Viewer) -> dict[str, Any]:
    """Whose job it is is asked first: this process may be root's, and whoever looks is not."""
    if action not in ACTIONS:
        raise UsageError(f"There is no action {action[:40]!r}.", f"There are: {', '.join(ACTIONS)}.")
    if ask_for_job(link, id)["user"] != viewer.user:
        raise NotPermitted(f"Job {id} is not yours.", "Only its user or root may do that.")
    client = link.open()
    try:
        about: dict[str, Any] = {"id": id, "index": 0} if action == "move" else {"select": one_job(id)}
        if action == "kill" and link.for_others:
            about["by"] = viewer.user  # who pressed the button; the connection is of who runs the page
        done: dict[str, Any] = client.ask(action, **about)
        return done
    finally:
        client.close()
