"""What those who look at a job's page are told: its details, and its output as it grows."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from gpulease.web.job_details import about_log, details
from gpulease.web.job_watch import JobWatch
from gpulease.web.picture import Row, Viewer, job_seen_by

NOT_SHOWN = "The output of a job is for its own user."


def may_read(job: Row, viewer: Viewer) -> bool:
    """Of a page for others, the output of one's own jobs only; else whatever this process can open."""
    return not viewer.public or (viewer.user != "" and job["user"] == viewer.user)


async def job_events(watch: JobWatch, viewer: Viewer, hides: bool) -> AsyncGenerator[bytes, None]:
    """What is new of a job: its details when they changed, and what was added to its output."""
    sent: int | None = None
    before = ""
    while True:
        changed = watch.changed
        news: dict[str, object] = {}
        if watch.job is not None:
            job = job_seen_by(watch.job, viewer, hides)
            shown = details(job, viewer)
            if shown != before:
                news["job"], before = {"rows": {"details": shown}, "order": ["details"]}, shown
            if may_read(job, viewer):
                news["about_log"] = about_log(watch.log, watch.log_trouble)
                sent = log_news(watch, sent, news)
        if watch.trouble:
            news["trouble"] = watch.trouble
        yield b"data: " + json.dumps(news).encode() + b"\n\n"
        await changed.wait()


def log_news(watch: JobWatch, sent: int | None, news: dict[str, object]) -> int | None:
    """What a viewer that has `sent` characters lacks; all that is kept, where that no longer reaches back so far."""
    log = watch.log
    if log is None:
        return sent
    if sent is None or sent < log.past:
        news["log"] = log.text
    elif sent < log.past + len(log.text):
        news["log_more"] = log.text[sent - log.past :]
    return log.past + len(log.text)
