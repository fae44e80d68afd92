"""The verbs about what was, for the command line and for Python alike: history and usage. Events are in lease_verbs."""

from __future__ import annotations

import time

from gpulease.api.event_selection import ago
from gpulease.client.connection import ask
from gpulease.model.fields import seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from gpulease.protocol.messages import HistoryPiece, UsageDocument

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
