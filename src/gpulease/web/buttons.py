"""PURE: what may be done to a job by a click, as forms that work without JavaScript too."""

from __future__ import annotations

from gpulease.web.markup import Markup, join, tag
from gpulease.web.picture import Row, Viewer

# action -> (what the button says, the states of jobs that it is for, whether it is asked about first)
ACTIONS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "move": ("To the front", ("waiting",), False),
    "pause": ("Pause", ("running", "waiting"), False),
    "resume": ("Resume", ("paused", "held"), False),
    "kill": ("Kill", ("running", "paused", "waiting", "held"), True),
}


def may_act(job: Row, viewer: Viewer) -> bool:
    return bool(viewer.action_token) and job["user"] == viewer.user


def buttons(job: Row, viewer: Viewer, prefix: str, base: str = "") -> Markup:
    """None for a job of another user's, nor for one that is ending."""
    if not may_act(job, viewer) or job.get("ending"):
        return join()
    return join(
        *(
            _form(job["id"], action, viewer.action_token, f"{prefix}{job['id']}-{action}", base)
            for action, (_, states, _) in ACTIONS.items()
            if job["state"] in states
        )
    )


def _form(id: int, action: str, token: str, name: str, base: str) -> Markup:
    label, _, ask = ACTIONS[action]
    confirm = f"{label} job {id}?" if ask else None
    return tag(
        "form",
        tag("input", type="hidden", name="token", value=token),
        tag("button", label, type="submit", id=name, aria_label=f"{label}: job {id}", class_=action),
        method="post",
        action=f"{base}jobs/{id}/{action}",
        data_confirm=confirm,
    )
