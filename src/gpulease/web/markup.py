"""PURE: HTML from elements, and buttons. Whatever is no Markup is escaped: no text of a user's can become one."""

from __future__ import annotations

from html import escape

from gpulease.web.picture import Row, Viewer

VOID = frozenset({"meta", "link", "input", "br"})


class Markup(str):
    """Text that is HTML already; only `tag` and `join` make it."""


Content = str | int | None


def tag(name: str, /, *content: Content, **attributes: str | int | bool | None) -> Markup:
    """`tag("a", "text", href="…")`. `_` in a name stands for `-`, and one at its end is left out, as in `class_`."""
    opened = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    return Markup(opened if name in VOID else f"{opened}{join(*content)}</{name}>")


def join(*content: Content) -> Markup:
    return Markup("".join(_shown(one) for one in content))


def _attribute(name: str, value: str | int | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{_shown(str(value))}"'


def _shown(one: Content) -> str:
    if one is None:
        return ""
    return one if isinstance(one, Markup) else escape(printable(str(one)))


def printable(text: str) -> str:
    """Without control characters, nor those that turn the direction of a line: a name must look like what it is."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else " " for letter in text)


# -------------------------------------------------------------------- buttons

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
