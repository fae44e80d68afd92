"""What the broker tells `top`: changes as they happen, and answers to questions, without ever waiting for one.

Two connections: on one the broker tells of changes, on the other it is asked, one question at a time. When it ends, a
thread looks for the next one, and the screen says so meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from gpulease.api.log import LONGEST, MOST, LogReader, shown_line
from gpulease.client.connection import Client, reconnect
from gpulease.client.subscriptions import Subscription
from gpulease.errors import BrokerUnavailable, GpuleaseError
from gpulease.model.job_selection import ENDED, one_job
from gpulease.render.status_document import unknown
from gpulease.render.terminal import width_of
from gpulease.tui.entries import MachineSeen, RecentLoad, Row, past_utilization

Answer = Callable[[Any], None]  # takes the broker's answer, or its error
Question = tuple[str, dict[str, Any], Answer]

TOPICS = ("devices", "leases", "line", "jobs")
MAX_JOBS = 200  # of each kind that one listing has
PACE = 0.5  # seconds between two questions about everything
REST = 20  # times as long as an answer took is waited before the next, so that a busy broker is asked seldom
REFRESH = 10.0  # seconds after which is asked again though nothing was told
SILENT = 5.0  # seconds without an answer after which that is said
HISTORY = 4 * 3600.0  # seconds of utilization that are asked for, as the broker kept them
AGAIN = 1.0  # seconds until a broker is looked for again
GONE = "The broker ended; looking for the next one."


def _checked(document: Row) -> Row:
    """Where the broker sees no device, `gpulease status` says why, as an error."""
    if not document["devices"]:
        from gpulease.api import status

        status.status()
    return document


class LiveData:
    """`seen` is what is known; `changed` says that it is not what was drawn last."""

    def __init__(self, needs_devices: bool = True) -> None:
        """Raises what the broker would say to `status`: no GPU, unless none is needed, or that none can be started."""
        client = Client()
        self._place = client.place.state
        status = client.ask("status")
        self.seen = MachineSeen(_checked(status) if needs_devices else status)
        self.history = RecentLoad()
        self._past: list[Row] = []  # what the broker kept of it, while its answers come
        self.opened: Row | None = None  # all about the job whose page is open
        self.refused = ""  # why the broker does not tell it
        self._opened_id: int | None = None
        self.connections = 0
        self._found: list[tuple[Subscription, Client] | Exception] = []  # by the thread that looks for a broker
        self._begin(Subscription(*TOPICS, client=Client(directory=self._place)), client)

    def _begin(self, reply: Subscription, client: Client) -> None:
        self._told, self._client = reply, client
        self._questions: deque[Question] = deque()
        if not self.connections:
            self._questions.append(("history", {"since": time.time() - HISTORY}, self._take_past))
        self._asked: tuple[Answer, float] | None = None  # what is not answered yet, and when it was sent
        self._due = self._earliest = 0.0
        self.connected, self.trouble, self.changed = True, "", True
        self.connections += 1

    # ---------------------------------------------------------------- what the loop calls

    def descriptors(self) -> list[int]:
        return [self._told.fileno(), self._client.fileno()] if self.connected else []

    def timeout(self, now: float) -> float:
        """Seconds until there is something to do though nobody says anything."""
        if not self.connected:
            return 0.1
        return SILENT if self._asked else 0.0 if self._questions else max(0.0, self._due - now)

    def turn(self, now: float) -> None:
        """Take what came, and ask what is due. It never waits for the broker."""
        if not self.connected:
            return self._look()
        try:
            self._hear(now)
            self._take_answer(now)
            if now >= self._due and not self._asked and not self._questions:
                self._ask_everything(now)
            self._send_next(now)
        except (GpuleaseError, OSError) as trouble:
            return self._lost(trouble)
        silent = "The broker does not answer." if self._asked and now - self._asked[1] > SILENT else ""
        self.changed |= silent != self.trouble
        self.trouble = silent

    def ask(self, verb: str, answer: Answer, **fields: Any) -> None:
        """A question ahead of the usual ones; while there is no broker it is refused at once."""
        if self.connected:
            self._questions.appendleft((verb, fields, answer))
        else:
            answer(BrokerUnavailable("There is no broker now.", "Try again when it is back."))

    def open(self, id: int | None) -> None:
        """From now on ask for all about this job."""
        self.opened, self.refused, self._opened_id, self._due = None, "", id, 0.0

    # ---------------------------------------------------------------- what comes

    def _hear(self, now: float) -> None:
        while (changed := self._told.receive(0)) is not None:
            rows = self._told.rows.get("devices")
            if "devices" in changed and rows:
                devices = sorted(rows.values(), key=lambda row: (row["index"], row["instance"] or 0))
                self.seen = self.seen._replace(status={**self.seen.status, "devices": devices})  # drawn with the clock
            if changed.keys() - {"devices"}:
                self._due = min(self._due, max(now, self._earliest))

    def _take_answer(self, now: float) -> None:
        if self._asked is None:
            return
        answer, sent = self._asked
        reply: Any
        try:
            reply = self._client.receive(0)
            if reply is None:
                return
            reply = reply.get("ok", reply)
        except GpuleaseError as error:
            reply = error
        self._asked = None
        self._earliest = max(self._earliest, now + REST * (now - sent))
        answer(reply)
        self.changed |= not self._questions  # what was asked together is drawn together

    def _send_next(self, now: float) -> None:
        if self._asked is None and self._questions:
            verb, fields, answer = self._questions.popleft()
            self._client.send(verb, **fields)
            self._asked = (answer, now)

    def _ask_everything(self, now: float) -> None:
        self._earliest, self._due = now + PACE, now + REFRESH
        self._questions.append(("status", {}, self._take_status))
        self._questions.append(("ls", {"most": MAX_JOBS}, self._take_jobs))
        if self._opened_id is not None:
            self._questions.append(("show", {"select": one_job(self._opened_id)}, self._take_job))

    def _take_status(self, reply: Any) -> None:
        if not isinstance(reply, GpuleaseError):
            self.seen = self.seen._replace(status=reply)

    def _take_jobs(self, reply: Any) -> None:
        if not isinstance(reply, GpuleaseError):
            self.seen = self.seen._replace(jobs=tuple(reply["jobs"]), counts=reply["counts"], paused=reply["paused"])

    def _take_job(self, reply: Any) -> None:
        if isinstance(reply, BrokerUnavailable):
            return
        if isinstance(reply, GpuleaseError):
            self.opened, self.refused = None, reply.what  # another user's, or removed
        elif reply["jobs"][0]["id"] == self._opened_id:
            self.opened = reply["jobs"][0]

    def _take_past(self, reply: Any) -> None:
        """An answer has a part; `next` is where the rest begins. An older broker keeps none."""
        if isinstance(reply, GpuleaseError):
            return
        self._past += reply["rows"]
        if reply["next"] is not None:
            self._questions.append(("history", {"since": reply["next"]}, self._take_past))
        else:
            self.history.begin(past_utilization(self._past), time.time())
            self._past = []

    # ---------------------------------------------------------------- a broker that ended

    def _lost(self, trouble: Exception) -> None:
        self._told.close()
        self._client.close()
        self.connected, self.changed = False, True
        status = self.seen.status  # what was free may be held by now
        self.seen = self.seen._replace(status={**status, "devices": unknown(status["devices"])})
        refused = isinstance(trouble, GpuleaseError)
        self.trouble = str(trouble) if refused else GONE
        for answer in [*([self._asked[0]] if self._asked else []), *(answer for _, _, answer in self._questions)]:
            answer(BrokerUnavailable("The broker ended before it answered.", "See the result, and try again."))
        self._start_looking(AGAIN if refused else 0.0)

    def _start_looking(self, later: float) -> None:
        threading.Thread(target=self._search, args=(later,), daemon=True).start()

    def _search(self, later: float) -> None:
        """In a thread: a broker that starts may take long, and the screen goes on meanwhile."""
        time.sleep(later)
        try:
            client = reconnect(self._place)
            assert isinstance(client, Client)  # of a broker, as the one before
            self._found.append((Subscription(*TOPICS, client=Client(directory=self._place)), client))
        except (GpuleaseError, OSError) as trouble:
            self._found.append(trouble)

    def _look(self) -> None:
        for found in self._found:
            self._found = []
            if isinstance(found, Exception):
                self.trouble, self.changed = f"{GONE} ({found})", True
                return self._start_looking(AGAIN)
            return self._begin(*found)


MAX_LINES = 5000


def wrapped(text: str, width: int) -> list[str]:
    """In pieces of at most `width` columns; an empty line is one piece."""
    if text.isascii():
        return [text[at : at + width] for at in range(0, len(text), width)] or [""]
    pieces = [""]
    for letter in text:
        if pieces[-1] and width_of(pieces[-1]) + width_of(letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


class Output:
    """The end of one job's log. `lines` is what was there at the last `grow`, and `note` why there is none."""

    def __init__(self, job: Row) -> None:
        self.id = int(job["id"])
        self.lines: tuple[str, ...] = ()
        self.note = ""
        self.count = 0  # of all lines that were read so far
        self._begun: list[str] = []
        self._rest = b""
        self._log: LogReader | None = None

    def grow(self, job: Row) -> bool:
        """Read what is new; whether anything is."""
        before = (self.lines, self.note)
        try:
            self.note = _without(job)
            if not self.note:
                self._read(job["log"], job["uid"])
        except FileNotFoundError:
            over = job["state"] in ENDED
            self.note = "There is no log any more." if over else "It has written nothing yet."
        except GpuleaseError as error:
            self.note = error.what
        return (self.lines, self.note) != before

    def _read(self, path: str, uid: int) -> None:
        if self._log is None or (self._log.path, self._log.uid) != (path, uid):
            self._log = LogReader(path, uid)
        data = self._log.read(MOST)
        if self._log.fresh or self._log.skipped:
            self._begun, self._rest = [], b""
        if self._log.skipped:  # from the middle of a line
            data = data.partition(b"\n")[2] or data
        if data or self._log.fresh:
            self._take(data)

    def _take(self, data: bytes) -> None:
        *ended, rest = (self._rest + data).split(b"\n")
        self.count += len(ended)
        self._rest = rest[-MOST:]
        self._begun = [*self._begun, *(_decoded(line) for line in ended[-MAX_LINES:])][-MAX_LINES:]
        last = [_decoded(self._rest)] if self._rest else []
        self.lines = (*self._begun, *last)


def _decoded(line: bytes) -> str:
    return shown_line(line[-16 * LONGEST :].decode(errors="replace"))


def _without(job: Row) -> str:
    if not job["log"]:
        return "Its log is hidden from you."
    return "" if job["runs"] else "It has not started yet."
