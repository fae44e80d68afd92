"""PURE: events as rows of a table, where one row is one use of GPUs, and as lines of a log."""

from __future__ import annotations

from gpulease.model.job_selection import job_text
from gpulease.render.times import clock, span, stamp

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpulease.protocol.messages import EventRow

WHAT = 24  # columns, of the last column at least
HEADINGS = ("START", "END", "LONG", "USER", "GPU", "WHAT")
UNKNOWN = "-"
NOT_SHOWN = ("added",)  # nobody has a GPU by it


def table_rows(events: Iterable[EventRow], ended: bool, now: float) -> list[tuple[str, ...]]:
    """In the order in which they began; `ended`: what has no end here may have one."""
    began: dict[str, EventRow] = {}  # by id, what is not known to have ended
    found: list[tuple[float, tuple[str, ...]]] = []
    for event in events:
        if event["what"] == "granted":
            began[event["id"]] = event
        elif event["what"] == "ended":
            grant = began.pop(event["id"], None)
            start = event.get("since", None if grant is None else grant["time"])
            found.append((start or event["time"], _use(event, grant, start, event["time"], ended, now)))
        elif event["what"] not in NOT_SHOWN:
            found.append((event["time"], _happened(event, now)))
    found += [(event["time"], _use(event, event, event["time"], None, ended, now)) for event in began.values()]
    return [row for _, row in sorted(found, key=lambda one: one[0])]


def _use(
    event: EventRow, grant: EventRow | None, start: float | None, end: float | None, ended: bool, now: float
) -> tuple[str, ...]:
    long = UNKNOWN if start is None or (end is None and ended) else span((now if end is None else end) - start)
    waited = None if grant is None else grant.get("waited")
    named, why = _named(event), event.get("why") or ""
    words = [why if why.startswith(named) else named]
    words += [f"waited {span(waited)}"] if waited is not None and waited >= 1 else []
    words += [f"by {event['releaser']}"] if event.get("releaser", event["user"]) != event["user"] else []
    words += [str(text) for text in (event.get("note"), why) if text and text not in words]
    times = (UNKNOWN if moment is None else clock(moment, now) for moment in (start, end))
    return (*times, long, event["user"], _gpus(event), ", ".join(words))


def _named(event: EventRow) -> str:
    """As the reason of a job's end begins, too."""
    id, kind = event.get("id", UNKNOWN), event.get("kind", UNKNOWN)
    return f"job {job_text(id)}" if kind == "job" else f"{id} {kind}"


def _happened(event: EventRow, now: float) -> tuple[str, ...]:
    """What is no use: a device that was excluded, a lease that was renewed."""
    words = " ".join(str(word) for word in (event.get("id"), event["what"]) if word)
    why = event.get("why") or event.get("note")
    return (clock(event["time"], now), "", "", event["user"], _gpus(event), f"{words}: {why}" if why else words)


def _gpus(event: EventRow) -> str:
    return ",".join(event.get("devices", ()))


def line_of(event: EventRow) -> str:
    """One line of a log."""
    why = event.get("why") or event.get("note") or ""
    if event["what"] == "granted":
        waited = f"{event['waited']:.0f}" if "waited" in event else UNKNOWN
        why = f"{event.get('kind', UNKNOWN)}, waited {waited} s"
    on = f" on GPU {_gpus(event)}" if _gpus(event) else ""
    id = f" {event['id']}" if event.get("id") else ""
    return f"{stamp(event['time'])} {event['what']}{id}{on} ({event['user']}){f': {why}' if why else ''}"
