"""The verbs of leases and devices, for the command line and for Python alike; `acquire` is in `api.leases`."""

from __future__ import annotations

from gpulease.client.connection import ask
from gpulease.errors import NotFound, UsageError, WrongState
from gpulease.model.fields import NAMES, request_fields, seconds, texts
from gpulease.model.job_selection import job_text, line_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from gpulease.model.job_selection import HasId
    from gpulease.protocol.messages import EventRow, Explained, Learned, ShortLease

MAX_EVENTS = 10_000


def release(
    *what: int | str, mine: bool = False, all: bool = False, if_held: bool = False, gone: bool = False
) -> list[ShortLease]:
    """Give back leases of one's own: by lease id, by device, or all with `mine`; a manager everybody's with `all`.

    With `if_held`, what one does not hold is no error. With `gone`, of all these only what was taken until it is
    released, or for a time, by a process that has ended.
    """
    named = [one for one in what if not if_held or str(one).strip()]  # a variable that was never set holds nothing
    names = texts(named, "What is released") if named else []
    if names and (mine or all):
        other = "mine" if mine else "all"
        raise UsageError(f"Leases were named, and `{other}` was given too.", "Leave one of the two out.")
    if mine and all:
        raise UsageError("`mine` and `all` were both given.", "Leave one of the two out.")
    reply: list[ShortLease] = ask("release", what=names, mine=mine, all=all, if_held=if_held, gone=gone)["released"]
    return reply


def renew(*what: int | str, duration: float | str) -> list[ShortLease]:
    """Let timed leases, by default all of one's own, end so long from now."""
    names = texts(what, "What is renewed") if what else []
    reply: list[ShortLease] = ask("renew", what=names, duration=seconds(duration, "duration"))["renewed"]
    return reply


def exclude(*devices: int | str, note: str | None = None) -> list[str]:
    """Take devices out of service, for everybody; their labels."""
    reply: list[str] = ask("exclude", what=texts(devices, "The device"), note=note)["excluded"]
    return reply


def include(*devices: int | str) -> list[str]:
    """Bring excluded devices back into service; their labels."""
    reply: list[str] = ask("include", what=texts(devices, "The device"))["included"]
    return reply


def events(
    *,
    since: float | str | None = None,
    until: float | str | None = None,
    user: str | None = None,
    gpu: int | str | Iterable[int | str] | None = None,
    kind: str | None = None,
    job: int | str | HasId | None = None,
    most: int | None = None,
) -> list[EventRow]:
    """Who took and gave back what, when and why: the last hundred, or all `since` so long ago.

    Only those of a `user`, on one of the GPUs, of a `kind` of lease or of a `job`; of the last 10,000 at most.
    """
    if most is not None and most < 1:
        raise UsageError(f"At most {most} events were asked for.", "Give 1 or more.")
    from gpulease.api.history import EventChoice, ago

    number = None
    if job is not None:
        from gpulease.api.jobs import id_of

        number = id_of(job)
    choice = EventChoice.of(until=until, user=user, gpu=gpu, kind=kind, job=number)
    span = None if since is None else ago(since, "since")
    shown = most or (100 if span is None else MAX_EVENTS)
    reply: list[EventRow] = ask("events", since=span, most=MAX_EVENTS if choice.narrows else shown)["events"]
    return [event for event in reply if choice.has(event)][-shown:]


def learned(start: bool = True) -> Learned:
    """How long one's own earlier runs took, by shape, and how the last starts compared with what was said of them."""
    reply: Learned = ask("learned", start=start)
    return reply


def forget_learned() -> int:
    """Forget what was learnt of one's own runs; how many sketches these were."""
    return int(ask("learned", clear=True).get("forgotten") or 0)


def explain(what: int | str | HasId | None = None, *, kind: str = "run", count: int = 1, **request: Any) -> Explained:
    """Why a request waits, device by device: a job, or a request as `status` shows it.

    Of a job that is in no line it is told what it is instead. Without it, `request` has arguments of `acquire`: when
    such a request would start, and each of `count` alike, if it were made now.
    """
    reply: Explained
    if what is None:
        reply = ask("explain", request=_request(request), kind=kind, count=count)
        return reply
    if request:
        raise UsageError("An id and a request were both given.", "Leave one of the two out.")
    text = str(getattr(what, "id", what))
    if text != "last" and not job_text(text).isdecimal():
        reply = ask("explain", start=False, id=text)
        return reply
    from gpulease.api.jobs import id_of, show

    number = id_of(text)
    try:
        reply = ask("explain", start=False, id=line_id(number))
        return reply
    except NotFound:
        job = show(number)[0]
        why = f": {job['why']}" if job["why"] else ""
        then = f"`gpulease resume {number}` puts it into the queue." if job["state"] == "held" else ""
        raise WrongState(f"Job {number} is not waiting: it is {job['state']}{why}.", then) from None


def _request(given: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise UsageError(f"A request has no {unknown[0]!r}.", f"It may have {', '.join(NAMES)}.")
    return request_fields(given)
