"""What those who look at a job's page are told: its details, and its output as it grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gpulease.web.hub import packed
from gpulease.web.job_details import about_log, details
from gpulease.web.job_watch import JobWatch
from gpulease.web.log_text import LogText
from gpulease.web.picture import Row, Viewer, job_seen_by

NOT_SHOWN = "The output of a job is for its own user."


def may_read(job: Row, viewer: Viewer) -> bool:
    """Of a page for others, the output of one's own jobs only; else whatever this process can open."""
    return not viewer.public or (viewer.user != "" and job["user"] == viewer.user)


class JobEvents:
    """For one viewer, who has been told so much."""

    def __init__(self, watch: JobWatch, viewer: Viewer, hides: Callable[[], bool]) -> None:
        self._watch, self._viewer, self._hides = watch, viewer, hides
        self._log: LogText | None = None
        self._sent, self._tail = 0, ""  # characters of its whole lines, and the line behind them
        self._details = ""
        self._changed: asyncio.Event | None = None  # None: it was told nothing yet

    async def next(self) -> bytes:
        if self._changed is not None:
            await self._changed.wait()
        self._changed = self._watch.changed
        return packed(self._news())

    def _news(self) -> dict[str, object]:
        watch, news = self._watch, dict[str, object](trouble=self._watch.trouble)
        if watch.job is None:
            return news
        job = job_seen_by(watch.job, self._viewer, self._hides())
        shown = details(job, self._viewer, time.time())
        if shown != self._details:
            self._details = shown
            news["job"] = {"rows": {"details": shown}, "order": ["details"]}
        if may_read(job, self._viewer):
            news |= {"about_log": about_log(watch.log, watch.log_trouble), **self._log_news()}
        return news

    def _log_news(self) -> dict[str, str]:
        """What it lacks; all that is kept, where that does not reach back so far. A tail takes the last one's place."""
        log, sent, tail = self._watch.log, self._sent, self._tail
        if log is None:
            return {}
        another, self._log = log is not self._log, log
        self._sent, self._tail = log.past + len(log.text), log.tail
        if another or sent < log.past:
            return {"log": log.text, "log_tail": self._tail}
        more = {"log_more": log.text[sent - log.past :]} if sent < self._sent else {}
        return more | ({"log_tail": self._tail} if self._tail != tail else {})
