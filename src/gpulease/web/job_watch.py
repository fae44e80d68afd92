"""Follow one job: read its row and its output once, and send them to all viewers of its page."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpulease.api.log import LogReader
from gpulease.errors import GpuleaseError, NotFound, in_words
from gpulease.model.job_selection import one_job
from gpulease.model.quantities import format_bytes
from gpulease.render.jobs import facts
from gpulease.render.terminal import clean
from gpulease.web.broker_feed import BrokerLink
from gpulease.web.cards import Markup, buttons, printable, tag
from gpulease.web.hub import packed
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


LONGEST = 128 << 10  # characters of a line without an end that are kept
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)?|[ -/]+[0-~]|[^\x1b\r\n])?")
UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\r\n]*\x1b?|[ -/]+)?\Z")  # none of them goes over a line


class WrittenLines:
    def __init__(self) -> None:
        self._rest = ""  # behind the last line break, of what was written over only the last

    @property
    def tail(self) -> str:
        """The last line as it is now, without a sequence that has only begun."""
        return _last_written(UNFINISHED.sub("", self._rest))

    def add(self, text: str) -> str:
        """The lines that are whole now, each with its line break."""
        whole, ended, rest = (self._rest + text).rpartition("\n")
        self._rest = _shortened(rest)
        return "".join(f"{_last_written(line)}\n" for line in whole.split("\n")) if ended else ""

    def end(self) -> str:
        """What is left, when it does not go on here."""
        tail, self._rest = self.tail, ""
        return tail


def _last_written(line: str) -> str:
    return printable(ESCAPES.sub("", line).rstrip("\r").rpartition("\r")[2])


def _shortened(rest: str) -> str:
    """Which comes to the same with whatever follows: a bar of progress may be gigabytes without a line break."""
    begun = UNFINISHED.search(rest)
    whole = ESCAPES.sub("", rest[: begun.start()] if begun else rest)
    shown = whole.rstrip("\r")
    kept = shown.rpartition("\r")[2] + ("\r" if shown != whole else "")
    return (kept + (begun.group() if begun else ""))[-LONGEST:]


# -------------------------------------------------------------------- the log

MOST = 128 << 10  # bytes that are read at a time, and kept


class LogText:
    """`text` is the end of its whole lines, `tail` the line that is still written.

    `past` says how many characters stood before `text` since this began to read.
    """

    def __init__(self, path: str, uid: int) -> None:
        self._log = LogReader(path, uid)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = WrittenLines()
        self.text, self.past, self.size, self.skipped = "", 0, 0, 0

    def is_of(self, path: str, uid: int) -> bool:
        return (path, uid) == (self._log.path, self._log.uid)

    @property
    def tail(self) -> str:
        return self._lines.tail

    @property
    def shown(self) -> str:
        return self.text + self.tail

    def read(self) -> bool:
        """Whether there is something new. OSError and GpuleaseError where it cannot be read."""
        known = self._log.position > 0
        data = self._log.read(MOST)
        self.size = self._log.size
        if self._log.fresh:
            if known:
                self.past += len(self.text) + 1  # so that who was told all of the last one is told this one anew
            self.text, self.skipped, self._lines = "", 0, WrittenLines()
            self._decoder.reset()
        if self._log.skipped:  # it grows faster than anybody reads
            self.skipped += self._log.skipped
            self._decoder.reset()
            self._add(self._lines.end())
        before = self.tail
        grown = self._add(self._lines.add(self._decoder.decode(data)))
        return grown or self.tail != before

    def _add(self, text: str) -> bool:
        self.text += text
        more = len(self.text) - MOST
        if more > 0:
            self.text, self.past = self.text[more:], self.past + more
        return bool(text)
