"""Which jobs a job comes after: the jobs that its submitter names, and whether one of them comes after itself."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import islice
from typing import Any

from gpulease.broker.core.turn import Turn
from gpulease.errors import NotFound, TooMuch, UsageError, WrongState
from gpulease.model import jobs as model_jobs
from gpulease.model.store import ListedJob, Which
from gpulease.model.values import Cause
from gpulease.protocol.messages import Fields

MAX_AFTER = 10_000  # jobs that one may come after
MAX_LINKS = 200_000  # jobs of a batch, times those that each of them comes after
MAX_LOOKED = 2000  # jobs that are looked at to see whether one comes after itself
MAX_BEFORE = 10_000  # that are followed back, one after the other, when a job is to come after others
AT_ONCE = 200  # ranges that the store is asked for
NAMED = 5  # jobs that a reason names
IN_BETWEEN = "Name fewer, or add one job in between that starts after them: `gpulease add -n 0 --after ... -- true`."

Range = tuple[int, int]


def predecessors(turn: Turn, uid: int, options: Fields, own: int, new: int = 0) -> tuple[int, ...]:
    """The jobs to come after. They exist, none has failed, and none comes after job `own`, the first of `new`."""
    last = own - 1 if new else turn.state.jobs.number
    rows = [*_named(turn, uid, options, own, last), *_labelled(turn, uid, options, last)]
    found = tuple(dict.fromkeys(row.id for row in rows if row.id != own))
    if len(found) > MAX_AFTER:
        raise TooMuch(f"It would start after more than {MAX_AFTER} jobs.", IN_BETWEEN)
    if len(found) * new > MAX_LINKS:
        raise TooMuch(f"{new} jobs would each start after {len(found)} others, which is too much.", IN_BETWEEN)
    if not new:  # nothing comes after one that is
        _refuse_circle(turn, list(found), own)
    return found


# -------------------------------------------------------------------- by ids and words


def _named(turn: Turn, uid: int, options: Fields, own: int, last: int) -> list[ListedJob]:
    after = options.get("after") or []
    if after == "all":
        return _rows(turn, Which(model_jobs.OPEN, uid, ids=[(1, last)]))
    if after == "last":
        newest = turn.state.store.jobs(Which((), uid, ids=[(1, last)]), 1, newest=True)
        if not newest:
            raise NotFound("It should start after your last job, but you have none.", "Leave `after` out.")
        after = [newest[0]["id"]]
    ranges = _ranges(after)
    if (own, own) in ranges:
        raise UsageError(f"Job {own} cannot start after itself.", "Name other jobs.")
    rows = _rows(turn, *(Which(ids=ranges[at : at + AT_ONCE]) for at in range(0, len(ranges), AT_ONCE)))
    _refuse_missing(ranges, sorted(row.id for row in rows), last)
    for row in rows:
        if not options.get("after_any"):
            _refuse_failed(row)
    return rows


def _ranges(after: Any) -> list[Range]:
    given = after if isinstance(after, list) else [after]
    pairs: list[Any] = [[one, one] if type(one) is int else one for one in given]
    if not all(map(_is_range, pairs)):
        raise UsageError("Invalid list of jobs to start after.", "Write ids and ranges, as 3,5-9.")
    if len(pairs) > MAX_AFTER:
        raise TooMuch(f"It would start after more than {MAX_AFTER} jobs.", IN_BETWEEN)
    return [(first, last) for first, last in pairs]


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(type(end) is int and 0 <= end < 1 << 62 for end in pair)


def _rows(turn: Turn, *many: Which) -> list[ListedJob]:
    """Of the store, and no more than one too many."""
    found: list[ListedJob] = []
    for which in many:
        found += turn.state.store.job_rows(which, MAX_AFTER + 1 - len(found))
        if len(found) > MAX_AFTER:
            raise TooMuch(f"It would start after more than {MAX_AFTER} jobs.", IN_BETWEEN)
    return found


def _refuse_missing(ranges: list[Range], there: list[int], newest: int) -> None:
    """None of a range is there, or its end is yet to come; what was forgotten in between is over."""
    for first, last in ranges:
        at = bisect_left(there, first)
        if at == len(there) or there[at] > last:
            named = f"job {first}" if first == last else f"jobs {first}-{last}"
            raise NotFound(
                f"It should start after {named}, but there is no such job.", "See the ids with `gpulease ls --all`."
            )
        if last > newest:
            raise NotFound(
                f"It should start after jobs {first}-{last}, but the newest job is {newest}.",
                f"Write {first}-{newest}, or `all`.",
            )


def _refuse_failed(row: ListedJob) -> None:
    if row.state in model_jobs.ENDS and row.state != "complete":
        raise WrongState(f"Job {row.id} is {row.state}, so no job can start after it.", "Use `after-any`, or retry it.")


# -------------------------------------------------------------------- by label


def _labelled(turn: Turn, uid: int, options: Fields, last: int) -> list[ListedJob]:
    """One's own with a label that are not over now. When all are over, one of them must have ended well."""
    label = options.get("after_label")
    if label is None:
        return []
    if not isinstance(label, str) or not label:
        raise UsageError("Invalid label of the jobs to start after.", "Write a label, as sweep1.")
    which = Which((), uid, label, [(1, last)])
    open_ones = _rows(turn, which._replace(states=model_jobs.OPEN))
    ends = {} if open_ones else turn.state.store.count_jobs(which)
    if not open_ones and not ends:
        raise NotFound(f"You have no job with the label {label[:40]!r}.", "See labels with `gpulease show all`.")
    if not open_ones and (uid, "complete") not in ends and not options.get("after_any"):
        what = f"All your jobs with the label {label[:40]!r} have ended, and none is complete."
        raise WrongState(what, "Use `after-any-label`, or retry them.")
    return open_ones


# -------------------------------------------------------------------- circles


def _refuse_circle(turn: Turn, after: list[int], own: int) -> None:
    rest, seen, looked = list(after), set(after), 0
    while rest:
        looked += 1
        if looked > MAX_LOOKED:
            raise UsageError("The jobs that it should start after depend on too many others.", "Name fewer.")
        other = turn.state.jobs.get(rest.pop())
        for id in () if other is None or other.over else other.spec.after:
            if id == own:
                raise UsageError(
                    f"Job {own} cannot start after job {after[0]}, which itself waits for it.", "Break the circle."
                )
            if id not in seen:
                seen.add(id)
                rest.append(id)
        if len(seen) > MAX_BEFORE:
            raise TooMuch(f"Job {own} would start after more than {MAX_BEFORE} jobs.", "Leave it where it is.")


def cause(open_ones: Mapping[int, None]) -> Cause | None:
    """Why a job waits: a few of the jobs that it waits for, and their number."""
    if not open_ones:
        return None
    named = ", ".join(map(str, islice(open_ones, NAMED)))
    many, more = len(open_ones), f" and {len(open_ones) - 1} more" if len(open_ones) > 1 else ""
    sentence = f"It comes after job {named}." if many <= NAMED else f"It comes after {many} jobs: {named} and others."
    return Cause(sentence, f"after {next(iter(open_ones))}{more}")
