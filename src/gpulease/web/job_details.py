"""PURE: a job in full, for its page: as HTML, as text, and what its viewers are told of its output."""

from __future__ import annotations

from gpulease.model.quantities import format_bytes
from gpulease.render.jobs import facts
from gpulease.render.terminal import clean
from gpulease.web.log_text import LogText
from gpulease.web.markup import Markup, buttons, tag
from gpulease.web.picture import Row, Viewer


def details(job: Row, viewer: Viewer, now: float) -> Markup:
    known = [(name, value) for name, value in facts(job, now) if value and name != "job"]
    rows = [(tag("dt", f"{name[:1].upper()}{name[1:]}"), tag("dd", value)) for name, value in known]
    acts = tag("div", buttons(job, viewer, "job-", base="../"), class_="actions")
    return tag("div", acts, tag("dl", *(part for row in rows for part in row)), id="job-details")


def as_text(job: Row, log: str, now: float) -> str:
    lines = [f"{name:<12} {clean(value)}" for name, value in facts(job, now) if value]
    return "\n".join([*lines, "", log]).rstrip("\n") + "\n"


def about_log(log: LogText | None, trouble: str | None) -> str:
    if log is None or trouble is not None:
        return trouble or "There is no output yet."
    if log.skipped or log.past:
        return f"The end of {format_bytes(log.size)}; `gpulease log` shows all of it."
    return f"{format_bytes(log.size)}"
