"""Clients that subscribe to changes as they are committed: of devices, leases, the queue, its order, and jobs.

A subscriber gets a snapshot, then what changed. One that does not read what it is sent costs no more memory: what it
missed is left out, and it gets a fresh snapshot once it has read the rest.
"""

from __future__ import annotations

import traceback  # now: when it is needed there may be no descriptor left to load it
from collections.abc import Callable, Mapping
from typing import Any, cast

from gpulease.broker.core import bulk, leases, status
from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import Send, WriteLog
from gpulease.broker.core.state.subscribers import MAX_NEWS, IdRanges, JobChange, Subscriber
from gpulease.broker.core.turn import ShownRows, Turn, as_error
from gpulease.errors import NotFound, TooMuch, UsageError
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Document, ListedJob, Which
from gpulease.protocol.messages import Reply, SubscribeRequest, error
from gpulease.protocol.wire import Written, to_text
from gpulease.render.hidden import viewer

SEND_INTERVAL = (
    0.05  # seconds between words to one client, unless all it waits for is over: each costs as much as a job's start
)
ROW = 0.001  # seconds more between two readings of a table, for each of its rows
FEW = 16  # subscribers that are told within the turn in which something changed; more have turns of their own
AT_ONCE = 8  # of many, that are told in such a turn
VISITED = 200  # the same, with those who have nothing to hear
ROWS = 5000  # ids that are looked through for one message
RANGES = 400  # of one question to the store
MAX_RANGES = 20_000  # of ids that one user waits for
MAX_TABLES = 100  # subscriptions of one user to devices, leases or the line
SHOWN = (*model_jobs.RUNNING, *model_jobs.ENDS)  # those that wait are counted only: there may be a hundred thousand
TABLES: dict[str, Callable[[Turn, str | None], dict[str, Document]]] = {
    "devices": status.device_rows,
    "leases": status.lease_rows,
    "line": status.line_rows,
    "order": status.order_rows,
}
TOPICS = (*TABLES, "jobs")


def subscribe(turn: Turn, event: Received[SubscribeRequest]) -> None:
    peer, message = event.peer, event.message
    topics = frozenset(message["topics"])
    strange = sorted(topics - set(TOPICS))
    if strange or not topics:
        raise UsageError(f"There is no topic {(strange or [''])[0][:40]!r}.", f"There are: {', '.join(TOPICS)}.")
    chosen = None
    if message.get("select") is not None:
        chosen = _choose(turn, event)
        if chosen is None:
            return
    subscriber = Subscriber(peer, topics, chosen)
    _check_limits(turn, subscriber)
    turn.state.subscribers.put(peer, subscriber)  # its snapshot is taken at the end of the turn
    turn.state.subscribers.visit_all()
    leases.schedule_sample(turn)


def _choose(turn: Turn, event: Received[Any]) -> IdRanges | None:
    """Those that a selection names; None when it is gone on with."""
    choice = bulk.choice(turn, event)
    piece = bulk.take_rows(turn, event, choice)
    progress = bulk.continue_later(turn, event, piece, [row.id for row in piece.jobs])
    if progress is None:
        return None
    if not bulk.is_nothing(turn, progress, choice):
        bulk.refuse_nothing(turn, progress, choice)
    if progress.missing:
        raise NotFound(
            f"Job {progress.missing[0]} is not there, or not yours.", "See the ids with `gpulease ls --all`."
        )
    return IdRanges(bulk.gathered(progress))


def _check_limits(turn: Turn, subscriber: Subscriber) -> None:
    uid = subscriber.peer.uid
    others = [one for one in turn.state.subscribers.values() if one.peer.uid == uid and one.peer is not subscriber.peer]
    if sum(len(one.jobs or ()) for one in (subscriber, *others)) > MAX_RANGES:
        raise TooMuch(
            f"You wait for jobs in more than {MAX_RANGES} ranges of ids.",
            "Wait for fewer at once, or for all of them.",
        )
    if sum(bool(one.topics & TABLES.keys()) for one in (subscriber, *others)) > MAX_TABLES:
        raise TooMuch(f"You have {MAX_TABLES} subscriptions to devices, leases or the queue, the most allowed.")


def behind(turn: Turn, peer: Peer) -> None:
    subscriber = turn.state.subscribers.get(peer)
    if subscriber is not None:
        turn.state.subscribers.put(peer, subscriber._replace(behind=True, news=()))


def drained(turn: Turn, peer: Peer) -> None:
    """It has read what it was sent: the next part of its snapshot follows, or a fresh one when it missed something."""
    subscribers = turn.state.subscribers
    subscriber = subscribers.get(peer)
    if subscriber is not None:
        more = subscriber.at is not None
        subscribers.put(peer, subscriber._replace(drained=more, fresh=not more, behind=False))
        subscribers.visit_all()


# -------------------------------------------------------------------- the snapshot


def _snapshot(turn: Turn, subscriber: Subscriber) -> None:
    subscriber = subscriber._replace(heard=turn.state.subscribers.changes, news=(), fresh=False)
    exact = len(turn.state.subscribers) <= FEW
    topics = [topic for topic in TABLES if topic in subscriber.topics]
    shown = {topic: _shown(turn, topic, subscriber.peer, exact) for topic in topics}
    subscriber = _has_seen(subscriber, shown)
    content: Document = {topic: one.text for topic, one in shown.items()}
    if "jobs" not in subscriber.topics:
        return _send(turn, subscriber, {"snapshot": content})
    if subscriber.jobs is not None:
        counted = subscriber._replace(open=_open(turn, subscriber.jobs), at=0, sent=0)
        return _part(turn, counted, "snapshot", content)
    rows = {str(job.id): _row(job) for job in turn.state.jobs.running.values()}
    all_open = sum(turn.state.jobs.counts.get(state, 0) for state in model_jobs.OPEN)
    return _send(turn, subscriber._replace(open=all_open), {"snapshot": {**content, "jobs": rows, "open": all_open}})


def _part(turn: Turn, subscriber: Subscriber, kind: str, content: Document) -> None:
    """Of the chosen jobs, as many as are read in a moment. Until it has reported all, the others count as open."""
    chosen, at = subscriber.jobs, subscriber.at
    assert chosen is not None
    assert at is not None
    ranges = chosen.ranges(at, RANGES, ROWS)
    found = turn.state.store.job_rows(Which(SHOWN, ids=ranges)) if ranges else []
    rows = {str(row.id): _row(turn.state.jobs.running.get(row.id, row)) for row in found}
    over = not ranges or not chosen.ranges(ranges[-1][1], 1, 1)
    subscriber = subscriber._replace(
        at=None if over else ranges[-1][1],
        sent=subscriber.sent + sum(row.state in model_jobs.ENDS for row in found),
        drained=False,
        news=() if over else subscriber.news,
    )
    open_jobs = subscriber.open if over else max(1, chosen.count - subscriber.sent)
    _send(turn, subscriber, {kind: {**content, "jobs": rows, "open": open_jobs}})


def _shown(turn: Turn, topic: str, peer: Peer, exact: bool = False) -> ShownRows:
    """The rows of a table; if there are many of them, not each time that something has changed, unless `exact`."""
    state, planned, seen_by = turn.state, turn.planned, viewer(turn.state.settings, peer)
    stamp = (state.revision, state.devices.sampled_at)
    kept = planned.shown.get((topic, seen_by))
    if kept is not None and kept.stamp != stamp and not exact:
        again = kept.at + max(SEND_INTERVAL, ROW * len(kept.rows))
        if again > turn.now:
            _want(turn, again)
            return kept
    if kept is None or kept.stamp != stamp:
        rows = TABLES[topic](turn, seen_by)
        kept = planned.shown[topic, seen_by] = ShownRows(rows, Written(to_text(rows)), turn.now, stamp)
        planned.updates.clear()
    return kept


def _has_seen(subscriber: Subscriber, shown: Mapping[str, ShownRows]) -> Subscriber:
    stamps = {one.stamp for one in shown.values()}
    stamp = stamps.pop() if len(stamps) == 1 else None
    return subscriber._replace(seen={topic: one.rows for topic, one in shown.items()}, stamp=stamp)


def _open(turn: Turn, chosen: IdRanges) -> int:
    """How many of them are not over."""
    found, at = 0, 0
    while ranges := chosen.ranges(at, RANGES, 1 << 62):
        found += sum(turn.state.store.count_jobs(Which(model_jobs.OPEN, ids=ranges)).values())
        at = ranges[-1][1]
    return found


def _row(job: Job | ListedJob) -> Document:
    return {"id": job.id, "state": job.state, "exit_code": job.exit_code}


# -------------------------------------------------------------------- changes


def send_changes(turn: Turn) -> None:
    """At the end of a turn. A mistake here ends the subscriptions, and not the turn: it would be made again at once."""
    try:
        if turn.state.subscribers:
            _send_changes(turn)
    except Exception as trouble:
        for subscriber in list(turn.state.subscribers.values()):
            _end(turn, subscriber, trouble)


def _end(turn: Turn, subscriber: Subscriber, trouble: Exception) -> None:
    turn.state.subscribers.drop(subscriber.peer)
    turn.send(subscriber.peer, error(as_error(trouble)))
    turn.emit(WriteLog("".join(traceback.format_exception(trouble))))


def _send_changes(turn: Turn) -> None:
    """To each subscriber for whom there is something new, now or soon.

    Many of them have turns of their own, a few in each: nobody else waits for all of them.
    """
    subscribers = turn.state.subscribers
    if turn.changed_jobs:
        subscribers.add_news([_change(id, *change) for id, change in turn.changed_jobs.items()])
        subscribers.visit_all()
    stamp = (turn.state.revision, turn.state.devices.sampled_at)
    if turn.planned.told_stamp != stamp:
        turn.planned.told_stamp = stamp
        subscribers.visit_all()
    few = len(subscribers) <= FEW
    if few or turn.tells:
        _visit_some(turn, FEW if few else AT_ONCE)
    _set_alarm(turn)


def _change(id: int, before: str, after: Job | None) -> JobChange:
    opened = (after is not None and not after.over) - (before in model_jobs.OPEN)
    return JobChange(id, None if after is None else _row(after), opened)


def _visit_some(turn: Turn, most: int) -> None:
    subscribers = turn.state.subscribers
    visits = min(subscribers.to_visit, len(subscribers), VISITED)
    left = subscribers.to_visit - visits
    for _ in range(visits):
        if not most:
            left += 1
            continue
        subscriber = next(iter(subscribers.values()))
        subscribers.put_last(subscriber)
        try:
            most -= _visit(turn, subscriber)
        except Exception as trouble:
            _end(turn, subscriber, trouble)
    subscribers.set("to_visit", min(left, len(subscribers)))


def _visit(turn: Turn, subscriber: Subscriber) -> bool:
    """Whether there was something to be made for it."""
    if subscriber.behind:
        return False
    if not subscriber.fresh:
        subscriber = _with_news(turn, subscriber)
    if subscriber.fresh:
        _snapshot(turn, subscriber)
        return True
    if subscriber.drained:
        _part(turn, subscriber, "changed", {})
        return True
    if subscriber.at is not None or not (subscriber.news or _has_changes(turn, subscriber)):
        return False
    again = subscriber.sent_at + SEND_INTERVAL
    if again <= turn.now or (subscriber.news and not subscriber.open):
        _send_changed(turn, subscriber)
        return True
    _want(turn, again)
    return False


def _want(turn: Turn, at: float) -> None:
    """Visit them again then."""
    wanted = turn.state.subscribers.wanted_at
    if wanted is None or at < wanted:
        turn.state.subscribers.set("wanted_at", at)


def _set_alarm(turn: Turn) -> None:
    subscribers = turn.state.subscribers
    at = turn.now if subscribers.to_visit else subscribers.wanted_at
    if at is not None and (subscribers.alarm_at is None or at < subscribers.alarm_at):
        subscribers.set("alarm_at", at)
        turn.alarm(at - turn.now, "tell")


def send_late(turn: Turn) -> None:
    """The alarm: `tell` follows at the end of the turn."""
    subscribers = turn.state.subscribers
    turn.tells = True
    subscribers.set("alarm_at", None)
    if subscribers.wanted_at is not None and subscribers.wanted_at <= turn.now:
        subscribers.set("wanted_at", None)
        subscribers.visit_all()


def _with_news(turn: Turn, subscriber: Subscriber) -> Subscriber:
    subscribers = turn.state.subscribers
    if "jobs" not in subscriber.topics or subscriber.heard == subscribers.changes:
        return subscriber
    found, chosen = subscribers.since(subscriber.heard), subscriber.jobs
    if found is not None and chosen is not None:
        found = [one for one in found if one.id in chosen]
    missed = found is None or sum(map(len, subscriber.news)) + len(found) > MAX_NEWS
    subscriber = subscriber._replace(
        heard=subscribers.changes,
        news=() if missed else (*subscriber.news, found) if found else subscriber.news,
        open=subscriber.open + sum(one.opened for one in found or ()),
        fresh=missed,
    )
    subscribers.put(subscriber.peer, subscriber)
    return subscriber


def _has_changes(turn: Turn, subscriber: Subscriber) -> bool:
    if subscriber.topics == {"jobs"}:
        return False
    return subscriber.stamp != (turn.state.revision, turn.state.devices.sampled_at)


def _send_changed(turn: Turn, subscriber: Subscriber) -> None:
    shown = {topic: _shown(turn, topic, subscriber.peer) for topic in subscriber.seen}
    message = _changed_rows(turn, subscriber, shown)
    if subscriber.news:
        news = {str(one.id): one.row for part in subscriber.news for one in part}
        message = {"changed": {**message["changed"], "jobs": news, "open": subscriber.open}}
    _send(turn, _has_seen(subscriber, shown)._replace(news=()), message)


def _changed_rows(turn: Turn, subscriber: Subscriber, shown: Mapping[str, ShownRows]) -> Document:
    """What is new in the tables; worked out once, and packed once, for all clients that got the same before."""
    before = [(rows, shown[topic].rows) for topic, rows in subscriber.seen.items()]
    key = frozenset((id(old), id(new)) for old, new in before)
    if key not in turn.planned.updates:
        content: Document = {}
        for topic, seen in subscriber.seen.items():
            rows = shown[topic].rows
            changed: dict[str, Document | None] = {name: row for name, row in rows.items() if seen.get(name) != row}
            changed |= dict.fromkeys(seen.keys() - rows.keys())
            if changed:
                content[topic] = changed
        turn.planned.updates[key] = ({"changed": content}, before)  # which keeps their identities
    return turn.planned.updates[key][0]


def _send(turn: Turn, subscriber: Subscriber, message: Document) -> None:
    """And remember what it knows now."""
    unfinished = subscriber.at is not None
    if any(message.values()):
        turn.emit(Send(subscriber.peer, cast(Reply, message), droppable=not unfinished, more=unfinished))
        subscriber = subscriber._replace(sent_at=turn.now)
    turn.state.subscribers.put(subscriber.peer, subscriber)
