"""The one subscription of a web server, in a thread of its own: however many look, the broker is asked once.

It is there while anybody looks. What the broker does not tell by itself (the list of jobs, events, history) is asked
for when something changed, and not more often than questions.py says.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from gpulease.client.subscriptions import Subscription
from gpulease.errors import GpuleaseError, in_words
from gpulease.web.broker_link import BrokerLink
from gpulease.web.picture import NOTHING, PagePicture
from gpulease.web.questions import Questions

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
            with Subscription(*TOPICS, client=client) as told:
                self._listen(told, questions)
        finally:
            questions.close()

    def _listen(self, told: Subscription, questions: Questions) -> None:
        while self._looked_at:
            changed = told.receive(LISTEN)
            if not told.rows:
                continue
            if changed and questions.begun:
                self._tell(_with_rows(questions.answers, told.rows))
            if questions.ask_if_due(news=bool(changed and changed.keys() - {"devices"})):
                self._tell(_with_rows(questions.answers, told.rows))

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
