"""The verbs about what was, for the command line and for Python alike: history and usage. Events are in lease_verbs."""

from __future__ import annotations

import time

from gpulease.client.connection import ask
from gpulease.errors import UsageError
from gpulease.model.fields import seconds, texts
from gpulease.model.job_selection import line_id
from gpulease.model.quantities import parse_moment, parse_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from gpulease.model.job_selection import JobId
    from gpulease.protocol.messages import HistoryPiece, UsageDocument

DAY = 86400.0


def ago(value: Any, said: str) -> float:
    """How many seconds before now: a length of time as `2h`; or a moment that has been, as `08:30` or a date."""
    if not isinstance(value, str):
        return seconds(value, said)
    try:
        return parse_seconds(value)
    except UsageError:
        now = time.time()
        try:
            moment = parse_moment(value, now)
        except UsageError:
            raise UsageError(f"{value[:40]!r} is not a time.", "Write 2h, 1d, 08:30 or 2026-12-24T22:30.") from None
        return max(0.0, now - (moment - DAY if moment > now and len(value) <= len("22:30") else moment))


class EventChoice:
    def __init__(
        self, until: float | None, user: str | None, gpus: list[str], kind: str | None, job: str | None
    ) -> None:
        self.until, self.user, self.gpus, self.kind, self.job = until, user, gpus, kind, job

    @classmethod
    def of(cls, until: Any, user: str | None, gpu: Any, kind: str | None, job: JobId | None) -> EventChoice:
        before = None if until is None else time.time() - ago(until, "until")
        gpus = [] if gpu is None else texts(gpu, "The GPU")
        return cls(before, user, gpus, kind, None if job is None else line_id(job))

    @property
    def narrows(self) -> bool:
        return bool(self.until is not None or self.user or self.gpus or self.kind or self.job)

    def has(self, event: Mapping[str, Any]) -> bool:
        """A field that an event does not have is not the one that was asked for."""
        return (
            (self.until is None or event["time"] <= self.until)
            and self.user in (None, event.get("user"))
            and self.kind in (None, event.get("kind"))
            and self.job in (None, event.get("id"))
            and (not self.gpus or any(self._is_on(label) for label in event.get("devices", ())))
        )

    def _is_on(self, label: str) -> bool:
        """A GPU stands for its MIG instances too."""
        return label in self.gpus or label.partition(":")[0] in self.gpus


MINUTES, TENS = 6 * 3600.0, 7 * 86400.0  # usage of so long is added up from minutes, and from tens of them


def history(*, since: float | str = "1d", until: float | str | None = None, step: float | str = 60.0) -> HistoryPiece:
    """What each GPU did and who held it, in steps of so long, from `since` so long ago until then or now."""
    pieces = list(_pieces("history", _moments(since, until), seconds(step, "step")))
    first: HistoryPiece = pieces[0]
    first["rows"] = [row for piece in pieces for row in piece["rows"]]
    first["next"] = None
    return first


def usage(*, since: float | str = "30d", until: float | str | None = None, by: str = "user") -> UsageDocument:
    """GPU time held, busy and idle, how long was waited, and how jobs ended: by user, group, label, gpu or day.

    One's own, or everybody's: as the parameter `usage-shown` says, and for who keeps the broker everybody's.
    """
    from gpulease.render.usage import add_up

    begin, end = _moments(since, until)
    span = (time.time() if end is None else end) - begin
    step = 60.0 if span <= MINUTES else 600.0 if span <= TENS else 3600.0
    pieces = list(_pieces("usage", (begin, end), step))
    uses = (row for piece in pieces for row in piece["rows"])
    rows, total = add_up(uses, (row for piece in pieces for row in piece["counts"]), by, _day)
    about = pieces[0]
    everybody = all(piece["everybody"] for piece in pieces)
    document: UsageDocument = {
        "since": about["since"], "until": about["until"], "step": about["step"], "by": by, "everybody": everybody,
        "rows": rows, "total": total, "note": about.get("note"),
    }  # fmt: skip
    if "note" in about:
        document["note"] = about["note"]
    return document


def _day(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(moment))


def _moments(since: float | str, until: float | str | None) -> tuple[float, float | None]:
    now = time.time()
    return now - ago(since, "since"), None if until is None else now - ago(until, "until")


def _pieces(verb: str, moments: tuple[float, float | None], step: float) -> Iterator[Any]:
    """An answer of the broker is bounded, and says from where to ask on."""
    since, until = moments
    start: float | None = since
    while start is not None:
        piece = ask(verb, since=start, until=until, step=step)
        yield piece
        until = piece["until"] if until is None else until
        start = piece["next"] if (piece["next"] or 0) > start else None
