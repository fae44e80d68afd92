"""One job as it goes on: its row and its output, read once for all who look at its page, and what they are told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpulease.errors import GpuleaseError, NotFound, in_words
from gpulease.model.job_selection import one_job
from gpulease.web.broker_feed import BrokerLink
from gpulease.web.hub import packed
from gpulease.web.job_details import about_log, details
from gpulease.web.log_text import LogText
from gpulease.web.picture import Row, Viewer, job_seen_by

LOG_CHECK_INTERVAL = 0.25  # seconds between looks at the log
ASK = 1.0  # seconds between questions about the job


def ask_for_job(link: BrokerLink, id: int) -> Row:
    """NotFound where there is none. As `ls` shows it: `show` is about one's own."""
    client = link.open()
    try:
        found: list[Row] = client.ask("ls", select=one_job(id), all=True)["jobs"]
    finally:
        client.close()
    if not found:
        raise NotFound(f"There is no job {id}.", "See the ids with `gpulease ls --all`.")
    return found[0]


def ask_totals(link: BrokerLink) -> Row | None:
    """None where the broker does not answer."""
    try:
        client = link.open()
    except (GpuleaseError, OSError):
        return None
    try:
        reply: Row = client.ask("totals")
        return reply
    except (GpuleaseError, OSError):
        return None
    finally:
        client.close()


class JobWatch:
    """While anybody looks. What is read comes from threads: a disk of a user's may hang."""

    def __init__(self, id: int, link: BrokerLink, threads: ThreadPoolExecutor) -> None:
        self.id, self._link, self._threads = id, link, threads
        self.viewers = 0
        self.job: Row | None = None
        self.trouble: str | None = None
        self.log: LogText | None = None
        self.log_trouble: str | None = "There is no output yet."
        self._asked = float("-inf")
        self._looking = asyncio.Lock()
        self.changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def enter(self) -> None:
        self.viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._go_on())

    def leave(self) -> None:
        self.viewers -= 1
        if not self.viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    async def look(self) -> None:
        """Once: the job if it is due, and its log."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            new = await loop.run_in_executor(self._threads, self._look, loop.time())
        if new:
            self.changed.set()
            self.changed = asyncio.Event()

    async def _go_on(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOG_CHECK_INTERVAL)

    def _look(self, now: float) -> bool:
        before = (self.job, self.trouble, self.log_trouble)
        if now - self._asked >= ASK:
            self._asked = now
            self._ask()
        grown = self._read()
        return grown or before != (self.job, self.trouble, self.log_trouble)

    def _ask(self) -> None:
        try:
            self.job, self.trouble = ask_for_job(self._link, self.id), None
        except GpuleaseError as error:
            self.trouble = f"{error.what} {error.next_step}"
        except OSError as error:
            self.trouble = f"The broker does not answer: {in_words(error)}."

    def _read(self) -> bool:
        job = self.job
        if job is None or not job["runs"] or not job["log"]:
            return False
        owner = self._link.log_owner(job)
        if owner is None:
            self.log, self.log_trouble = None, "The output is not shown: its user has no account here."
            return False
        if self.log is None or not self.log.is_of(job["log"], owner):
            self.log = LogText(job["log"], owner)
        try:
            grown, self.log_trouble = self.log.read(), None
            return grown
        except FileNotFoundError:
            self.log_trouble = "There is no output yet, or none any more."
        except GpuleaseError as error:
            self.log_trouble = error.what
        except OSError as error:
            self.log_trouble = f"The output cannot be read: {error.strerror}."
        return False


# -------------------------------------------------------------------- what viewers are told

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
