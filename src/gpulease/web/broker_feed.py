"""The one subscription of a web server, in a thread of its own: however many look, the broker is asked once.

It is there while anybody looks. What the broker does not tell by itself (the list of jobs, events, history) is asked
for when something changed, and not more often than `Questions` says.

A page for others may be root's, and shows what root can read. So it believes only a broker that its own user runs, by
the kernel's word and at each connection: another's could name any file as somebody's output.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from gpulease.client.connection import Client
from gpulease.client.subscriptions import Subscription
from gpulease.errors import GpuleaseError, NotPermitted, in_words
from gpulease.render.usage import add_up
from gpulease.system.identity import uid_of, user_name
from gpulease.web.picture import NOTHING, PagePicture


class BrokerLink(NamedTuple):
    for_others: bool = False  # --public or --user-header

    def open(self, start: bool = False) -> Client:
        client = Client(start)
        if self.for_others and client.broker_uid != os.geteuid():
            client.close()
            raise not_own(client.broker_uid)
        return client

    def log_owner(self, job: dict[str, Any]) -> int | None:
        """For others it is the account of the job's user, whom the viewer must be; None where there is none."""
        if self.for_others:
            return uid_of(job["user"])
        uid: int = job["uid"]
        return uid


def not_own(broker_uid: int) -> NotPermitted:
    runner = user_name(broker_uid)
    return NotPermitted(
        f"The broker is run by {runner}, so only {runner} may show it to others.",
        f"Start the page as {runner}; without --public and --user-header it is for you alone.",
    )


# -------------------------------------------------------------------- questions

DAY = 86400.0
HOUR = 3600.0
MINUTE = 60.0
MAX_JOBS = 50
MAX_EVENTS = 40
RECENT = 10 * MINUTE
USAGE = 7 * DAY
ROWS = ("devices", "leases", "line", "line_length")  # of `status`, of which the subscription tells


class Questions:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.answers = NOTHING
        self._asked: dict[str, float] = {}
        self._news = True

    @property
    def begun(self) -> bool:
        return bool(self._asked)

    def ask_if_due(self, news: bool) -> bool:
        """Whether something was asked. `news`: leases, the line or jobs have changed."""
        self._news = self._news or news
        now, asked = time.monotonic(), False
        for name, (question, often) in QUESTIONS.items():
            pause = often if name != "queue" or self._news else QUIET
            if now - self._asked.get(name, float("-inf")) >= pause:
                self.answers = question(self._client, self.answers)
                self._asked[name], asked = time.monotonic(), True
                self._news = self._news and name != "queue"
        return asked

    def close(self) -> None:
        self._client.close()


def _status(client: Client, picture: PagePicture) -> PagePicture:
    subscription = client.ask("status")
    return picture._replace(status={name: value for name, value in subscription.items() if name not in ROWS})


def _queue(client: Client, picture: PagePicture) -> PagePicture:
    """What changes whenever a job or a lease does."""
    listing = client.ask("ls", most=MAX_JOBS)
    return picture._replace(
        jobs=tuple(listing["jobs"]),
        counts=listing["counts"],
        paused=listing["paused"],
        events=tuple(client.ask("events", most=MAX_EVENTS)["events"]),
    )


def _hides(client: Client, picture: PagePicture) -> PagePicture:
    return picture._replace(hides=_parameter(client, "hide-commands") != "off")


def _parameter(client: Client, name: str) -> str:
    (row,) = client.ask("set", name=name)["parameters"]
    return str(row["value"])


def _minutes(client: Client, picture: PagePicture) -> PagePicture:
    return picture._replace(
        minutes=tuple(row for piece in _pieces(client, "history", RECENT, MINUTE) for row in piece["rows"])
    )


def _day(client: Client, picture: PagePicture) -> PagePicture:
    return picture._replace(
        hours=tuple(row for piece in _pieces(client, "history", DAY, HOUR) for row in piece["rows"])
    )


def _usage(client: Client, picture: PagePicture) -> PagePicture:
    pieces = list(_pieces(client, "usage", USAGE, HOUR))
    uses, counts = ([row for piece in pieces for row in piece[name]] for name in ("rows", "counts"))
    rows, _ = add_up(uses, counts, "user", str)
    return picture._replace(usage=tuple(map(dict, rows)), usage_shown=_parameter(client, "usage-shown"))


def _pieces(client: Client, verb: str, span: float, step: float) -> Iterator[Any]:
    """The last so many seconds; an answer is bounded, and says from where to ask on."""
    until = time.time()
    since: float | None = until - span
    while since is not None:
        piece = client.ask(verb, since=since, until=until, step=step)
        yield piece
        since = piece["next"]


QUIET = 10.0  # seconds, where nothing has changed
QUESTIONS: dict[str, tuple[Callable[[Client, PagePicture], PagePicture], float]] = {  # and seconds between two
    "status": (_status, 10.0),
    "hides": (_hides, 2.0),
    "queue": (_queue, 0.5),
    "minutes": (_minutes, 30.0),
    "day": (_day, 60.0),
    "usage": (_usage, 300.0),
}


# -------------------------------------------------------------------- the feed

TOPICS = ("devices", "leases", "line", "order", "jobs")
LISTEN = 0.25  # seconds
RETRY = 0.5  # seconds until a broker that is gone is looked for again
LINGER = 60.0  # seconds that the subscription outlives the last who looked


class BrokerFeed:
    def __init__(self, publish: Callable[[PagePicture], None], link: BrokerLink, always: bool = False) -> None:
        """`publish` is called in the feed's thread; `always`: also while nobody looks."""
        self._publish, self._link, self._always = publish, link, always
        self._picture = NOTHING
        self._wanted = threading.Event()
        self._until = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feed", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def want(self) -> None:
        """Somebody looks now."""
        self._until = time.monotonic() + LINGER
        self._wanted.set()

    def stop(self) -> None:
        self._stopped.set()
        self._wanted.set()
        self._thread.join(5)

    @property
    def _looked_at(self) -> bool:
        return not self._stopped.is_set() and (self._always or time.monotonic() < self._until)

    def _run(self) -> None:
        start = True
        while not self._stopped.is_set():
            self._wanted.clear()  # before it is looked at, so that nobody who comes now is missed
            if not self._looked_at:
                self._tell(NOTHING)
                self._wanted.wait()
                continue
            try:
                self._follow(start)
                start = True
            except Exception as error:  # whatever it is, the page says so and it is tried again
                start = False  # who stopped the broker meant it
                trouble = _trouble(error)
                if not isinstance(error, (GpuleaseError, OSError)) and trouble != self._picture.trouble:
                    traceback.print_exception(error)  # a mistake of ours, told once
                self._tell(self._picture._replace(trouble=trouble))
                self._stopped.wait(RETRY)

    def _follow(self, start: bool) -> None:
        """Until nobody looks, or the broker ends."""
        client = self._link.open(start)
        questions = Questions(self._link.open())
        try:
            with Subscription(*TOPICS, client=client) as subscription:
                self._listen(subscription, questions)
        finally:
            questions.close()

    def _listen(self, subscription: Subscription, questions: Questions) -> None:
        while self._looked_at:
            changed = subscription.receive(LISTEN)
            if not subscription.rows:
                continue
            if changed and questions.begun:
                self._tell(_with_rows(questions.answers, subscription.rows))
            if questions.ask_if_due(news=bool(changed and changed.keys() - {"devices"})):
                self._tell(_with_rows(questions.answers, subscription.rows))

    def _tell(self, picture: PagePicture) -> None:
        now = time.time()
        self._picture = picture if picture.trouble or not picture.status else picture._replace(heard=now)
        self._publish(self._picture._replace(time=now))


def _trouble(error: Exception) -> str:
    if isinstance(error, ConnectionError):
        return "The broker ended. This page goes on when it is back."
    if isinstance(error, GpuleaseError):
        return f"{error.what} {error.next_step}"
    return f"The broker could not be asked: {in_words(error)}."


def _with_rows(picture: PagePicture, rows: dict[str, dict[str, Any]]) -> PagePicture:
    order, line = rows["order"]["line"], rows["line"]
    return picture._replace(
        devices=tuple(sorted(rows["devices"].values(), key=lambda row: (row["index"], row["instance"] or 0))),
        leases=tuple(rows["leases"].values()),
        line=tuple(line[id] for id in order["ids"] if id in line),
        line_length=order["length"],
    )
