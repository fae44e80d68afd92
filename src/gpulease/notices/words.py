"""PURE: what a notice says. Many are told of in one message, so that a sweep that ends is not a thousand of them.

Nothing of another user is in a notice but names of users. Control characters are taken out of all of it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, NamedTuple

from gpulease.model.notices import EVENTS
from gpulease.model.quantities import span_text
from gpulease.render.jobs import end_text, some
from gpulease.render.terminal import clean

Notice = dict[str, Any]  # as the broker says it; `gpulease help notices` has its fields
EACH = 5  # notices of one kind that have a line each; more of them have one line together
MOST = 50  # notices that a message has as fields
LONGEST = 300  # letters of a line
URGENT = ("gpu-broken", "gpu-used", "lease-ending", "out-of-memory", "failed", "turn", "ended")
SHORT = {
    "turn": "started",
    "lease-ending": "about to end",
    "gpu-broken": "GPU broken",
    "gpu-used": "GPU used by others",
    "out-of-memory": "out of memory",
}
TOGETHER = {
    "turn": "jobs have started",
    "ended": "jobs are complete",
    "failed": "jobs have failed",
    "out-of-memory": "jobs ran out of GPU memory",
}


class Composed(NamedTuple):
    """One message about one notice or many."""

    title: str
    text: str
    notices: tuple[Notice, ...]  # of many, the first
    number: int  # of all


def compose(notices: list[Notice], left_out: int = 0) -> Composed:
    """`left_out`: how many more there were, which nobody kept."""
    ordered = sorted(_last_word(notices), key=lambda one: URGENT.index(one["event"]))
    lines = [line for event in URGENT for line in _lines([one for one in ordered if one["event"] == event])]
    if left_out:
        lines.append(f"And {left_out} before these, which were too many to keep.")
    host = clean(str(notices[0].get("host", ""))) if notices else ""
    about = _title(ordered[0]) if len(ordered) == 1 and not left_out else _counts(ordered, left_out)
    title = _short(f"gpulease {host}: {about}")
    return Composed(title, "\n".join(lines), tuple(map(_cleaned, ordered[:MOST])), len(ordered) + left_out)


def _cleaned(notice: Notice) -> Notice:
    return {field: _clean(value) for field, value in notice.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, list):
        return [_clean(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def _last_word(notices: list[Notice]) -> list[Notice]:
    """That a job began is no news once it has ended."""
    over = {one.get("job") for one in notices if one["event"] != "turn"} - {None}
    return [one for one in notices if one["event"] != "turn" or one.get("job") not in over]


def _lines(alike: list[Notice]) -> list[str]:
    ids = [one["job"] for one in alike if one.get("job") is not None]
    if len(alike) <= EACH or len(ids) < len(alike):
        more = [f"And {len(alike) - EACH} more of this kind."] if len(alike) > EACH else []
        return [*map(sentence, alike[:EACH]), *more]
    return [_short(f"{len(alike)} {TOGETHER.get(alike[0]['event'], alike[0]['event'])}: {some(ids)}.")]


def trial(host: str) -> Composed:
    """What `gpulease notify test` sends."""
    text = "Notices arrive here. `gpulease notify` shows which events you get."
    return Composed(_short(f"gpulease {host}: a test"), text, (), 1)


def _counts(notices: list[Notice], left_out: int) -> str:
    """`480 ended, 20 failed`"""
    found = Counter(one["event"] for one in notices)
    parts = [f"{found[event]} {SHORT.get(event, event)}" for event in EVENTS if found[event]]
    return ", ".join([*parts, *([f"{left_out} left out"] if left_out else [])])


def _title(notice: Notice) -> str:
    if notice["event"] == "gpu-broken":
        return f"GPU {_devices(notice)} is broken"
    if notice["event"] == "gpu-used":
        return f"somebody else uses GPU {_devices(notice)}"
    what = {"turn": "has its GPUs", "ended": "is complete", "out-of-memory": "ran out of GPU memory"}
    ending = "was ended" if notice.get("why") else "is about to end"
    other = {"lease-ending": ending, "failed": f"is {notice.get('state', 'failed')}"}
    return f"{_subject(notice)} {(what | other)[notice['event']]}"


def sentence(notice: Notice) -> str:
    return _short(SENTENCES[notice["event"]](notice))


def _short(text: str) -> str:
    text = clean(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _subject(notice: Notice) -> str:
    if notice.get("job") is None:
        note = f" ({notice['note']})" if notice.get("note") else ""
        return f"lease {notice.get('lease')}{note}"
    return f"job {notice['job']}" + (f" ({notice['name']})" if notice.get("name") else "")


def _devices(notice: Notice) -> str:
    return ",".join(notice.get("devices") or ())


def _first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _turn(notice: Notice) -> str:
    gpus = f"GPU {_devices(notice)}" if notice.get("devices") else "its turn"
    return f"{_first(_subject(notice))} has {gpus}, after {span_text(notice['waited'])} of waiting."


def _ended(notice: Notice) -> str:
    return f"{_first(_subject(notice))} is complete, after {span_text(notice['ran'] or 0)}."


def _failed(notice: Notice) -> str:
    how = notice.get("why") or end_text(notice.get("exit_code"), notice.get("signal")) or "it ended"
    ran = notice.get("ran")
    log = "" if ran is None else f" It ran for {span_text(ran)}. See `gpulease log {notice['job']}`."
    return f"{_first(_subject(notice))} is {notice['state']}: {how}.{log}"


def _out_of_memory(notice: Notice) -> str:
    then = " It runs again." if notice["state"] == "waiting" else f" See `gpulease log {notice['job']}`."
    return f"{_first(_subject(notice))} ran out of memory on GPU {_devices(notice)}.{then}"


def _lease_ending(notice: Notice) -> str:
    if notice.get("why"):
        return f"{_first(_subject(notice))} on GPU {_devices(notice)} was ended: {notice['why']}."
    at = time.strftime("%H:%M", time.localtime(notice["until"]))
    more = f"`gpulease renew {notice['lease']} --for 2h` gives it more time."
    left = span_text(notice["until"] - notice["time"])
    return f"{_first(_subject(notice))} on GPU {_devices(notice)} ends in {left}, at {at}. {more}"


def _gpu_broken(notice: Notice) -> str:
    holders = ", ".join(notice.get("users") or ())
    held = f" It is held by {holders}." if holders else ""
    mine = f" Your lease {notice['lease']} is on it." if notice.get("lease") else ""
    return f"GPU {_devices(notice)} is broken, the driver lost it: {notice.get('why')}.{mine or held}"


def _gpu_used(notice: Notice) -> str:
    pid = f" (pid {notice['pid']})" if notice.get("pid") else ""
    who = ", ".join(notice.get("users") or ()) or "somebody who cannot be seen"
    return f"GPU {_devices(notice)}, which your lease {notice.get('lease')} has, is used by {who}{pid} without a lease."


SENTENCES = {
    "turn": _turn,
    "ended": _ended,
    "failed": _failed,
    "out-of-memory": _out_of_memory,
    "lease-ending": _lease_ending,
    "gpu-broken": _gpu_broken,
    "gpu-used": _gpu_used,
}
