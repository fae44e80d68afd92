"""What the broker does not tell a subscriber by itself, asked for as often as it is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from gpulease.client.connection import Client
from gpulease.render.usage import add_up
from gpulease.web.picture import NOTHING, PagePicture

DAY = 86400.0
HOUR = 3600.0
MINUTE = 60.0
MOST_JOBS = 50
MOST_EVENTS = 40
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
    told = client.ask("status")
    return picture._replace(status={name: value for name, value in told.items() if name not in ROWS})


def _queue(client: Client, picture: PagePicture) -> PagePicture:
    """What changes whenever a job or a lease does."""
    listing = client.ask("ls", most=MOST_JOBS)
    return picture._replace(
        jobs=tuple(listing["jobs"]),
        counts=listing["counts"],
        paused=listing["paused"],
        events=tuple(client.ask("events", most=MOST_EVENTS)["events"]),
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
