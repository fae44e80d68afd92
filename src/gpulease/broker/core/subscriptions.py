"""Clients that are told of changes as they are committed: of devices, leases, the line, its order, and jobs.

A subscriber gets a snapshot, then what changed. One that does not read what it is sent costs no more memory: what it
missed is left out, and it gets a fresh snapshot once it has read the rest.
"""

from __future__ import annotations

from collections.abc import Callable

from gpulease.broker.core import bulk
from gpulease.broker.core import leases as lease_life
from gpulease.broker.core import status as reports
from gpulease.broker.core.events import Received
from gpulease.broker.core.ids import Ids
from gpulease.broker.core.instructions import Send
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Subscriber
from gpulease.errors import NotFound, TooMuch, UsageError
from gpulease.model import job as jobs
from gpulease.model.job import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Document, ListedJob, Which
from gpulease.render.hidden import viewer

TELL = 0.05  # seconds between words to one client, unless all it waits for is over: each costs as much as a job's start
ROWS = 5000  # ids that are looked through for one message
RANGES = 400  # of one question to the store
MOST_NEWS = 10_000  # jobs of one message; who missed more gets a fresh snapshot
MOST_RANGES = 20_000  # of ids that one user waits for
MOST_TABLES = 100  # subscriptions of one user to devices, leases or the line
SHOWN = (*jobs.RUNNING, *jobs.ENDS)  # those that wait are counted only: there may be a hundred thousand
TABLES: dict[str, Callable[[Turn, str | None], dict[str, Document]]] = {
    "devices": reports.device_rows,
    "leases": reports.lease_rows,
    "line": reports.line_rows,
    "order": reports.order_rows,
}
TOPICS = (*TABLES, "jobs")


def subscribe(turn: Turn, event: Received) -> None:
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
    turn.state.put_subscriber(subscriber)  # its snapshot is taken at the end of the turn
    lease_life.look_again(turn)


def _choose(turn: Turn, event: Received) -> Ids | None:
    """Those that a selection names; None when it is gone on with."""
    choice = bulk.choice(turn, event)
    piece = bulk.take_rows(turn, event, choice)
    progress = bulk.go_on(turn, event, piece, [row.id for row in piece.jobs])
    if progress is None:
        return None
    if not bulk.is_nothing(turn, progress, choice):
        bulk.refuse_nothing(turn, progress, choice)
    if progress.missing:
        raise NotFound(
            f"Job {progress.missing[0]} is not there, or not yours.", "See the ids with `gpulease ls --all`."
        )
    return Ids(bulk.gathered(progress))


def _check_limits(turn: Turn, subscriber: Subscriber) -> None:
    uid = subscriber.peer.uid
    others = [one for one in turn.state.subscribers.values() if one.peer.uid == uid and one.peer is not subscriber.peer]
    if sum(len(one.jobs or ()) for one in (subscriber, *others)) > MOST_RANGES:
        raise TooMuch(
            f"You wait for jobs in more than {MOST_RANGES} ranges of ids.",
            "Wait for fewer at once, or for all of them.",
        )
    if sum(bool(one.topics & TABLES.keys()) for one in (subscriber, *others)) > MOST_TABLES:
        raise TooMuch(f"You have {MOST_TABLES} subscriptions to devices, leases or the line, and more are not taken.")


def drained(turn: Turn, peer: Peer) -> None:
    """It has read what it was sent: the next part of its snapshot follows, or a fresh one when it missed something."""
    subscriber = turn.state.subscribers.get(peer)
    if subscriber is not None:
        turn.state.put_subscriber(subscriber._replace(drained=subscriber.at is not None, fresh=subscriber.at is None))


# -------------------------------------------------------------------- the snapshot


def _snapshot(turn: Turn, subscriber: Subscriber) -> None:
    seen_by = viewer(turn.state.settings, subscriber.peer)
    key = ("snapshot", (seen_by, subscriber.topics))
    if key not in turn.told:
        turn.told[key] = {topic: _rows(turn, topic, seen_by) for topic in subscriber.topics if topic in TABLES}
    told = turn.told[key]
    if "jobs" not in subscriber.topics:
        return _send(turn, subscriber, "snapshot", told)
    if subscriber.jobs is not None:
        counted = subscriber._replace(open=_open(turn, subscriber.jobs), at=0, told=0)
        return _part(turn, counted, "snapshot", told)
    rows = {str(job.id): _row(job) for job in turn.state.running.values()}
    all_open = sum(turn.state.counts.get(state, 0) for state in jobs.OPEN)
    return _send(turn, subscriber._replace(open=all_open), "snapshot", {**told, "jobs": rows, "open": all_open})


def _part(turn: Turn, subscriber: Subscriber, kind: str, told: Document) -> None:
    """Of those that it chose, as many as are read in a moment. Until it is told of all, the others count as open."""
    chosen, at = subscriber.jobs, subscriber.at
    assert chosen is not None
    assert at is not None
    ranges = chosen.ranges(at, RANGES, ROWS)
    found = turn.state.store.job_rows(Which(SHOWN, ids=ranges)) if ranges else []
    rows = {str(row.id): _row(turn.state.running.get(row.id, row)) for row in found}
    over = not ranges or not chosen.ranges(ranges[-1][1], 1, 1)
    subscriber = subscriber._replace(
        at=None if over else ranges[-1][1],
        told=subscriber.told + sum(row.state in jobs.ENDS for row in found),
        drained=False,
    )
    open_jobs = subscriber.open if over else max(1, chosen.count - subscriber.told)
    _send(turn, subscriber, kind, {**told, "jobs": rows, "open": open_jobs})


def _rows(turn: Turn, topic: str, seen_by: str | None) -> dict[str, Document]:
    if (topic, seen_by) not in turn.rows:
        turn.rows[topic, seen_by] = TABLES[topic](turn, seen_by)
    return turn.rows[topic, seen_by]


def _open(turn: Turn, chosen: Ids) -> int:
    """How many of them are not over."""
    found, at = 0, 0
    while ranges := chosen.ranges(at, RANGES, 1 << 62):
        found += sum(turn.state.store.count_jobs(Which(jobs.OPEN, ids=ranges)).values())
        at = ranges[-1][1]
    return found


def _row(job: Job | ListedJob) -> Document:
    return {"id": job.id, "state": job.state, "exit_code": job.exit_code}


# -------------------------------------------------------------------- changes


def tell(turn: Turn) -> None:
    """At the end of a turn: whoever has something to hear, hears it now, or soon."""
    for subscriber in list(turn.state.subscribers.values()):
        subscriber = _with_news(turn, subscriber)
        if subscriber.fresh:
            _snapshot(turn, subscriber)
        elif subscriber.drained:
            _part(turn, subscriber, "changed", {})
        if subscriber.fresh or subscriber.at is not None:
            continue
        if not subscriber.news and not _looks_new(turn, subscriber):
            continue
        wait = subscriber.told_at + TELL - turn.now
        if wait <= 0 or (subscriber.news and not subscriber.open):
            _tell(turn, subscriber)
        elif not subscriber.due:
            turn.state.put_subscriber(subscriber._replace(due=True))
            turn.alarm(wait, "tell")


def tell_late(turn: Turn) -> None:
    """The alarm: `tell` follows at the end of the turn."""
    for subscriber in list(turn.state.subscribers.values()):
        if subscriber.due:
            turn.state.put_subscriber(subscriber._replace(due=False))


def _with_news(turn: Turn, subscriber: Subscriber) -> Subscriber:
    if "jobs" not in subscriber.topics or not turn.changed_jobs or subscriber.fresh:
        return subscriber
    news, open_jobs = dict(subscriber.news), subscriber.open
    for id, (before, after) in turn.changed_jobs.items():
        if subscriber.jobs is None or id in subscriber.jobs:
            news[str(id)] = None if after is None else _row(after)
            open_jobs += (after is not None and not after.over) - (before in jobs.OPEN)
    if news == subscriber.news and open_jobs == subscriber.open:
        return subscriber
    missed = len(news) > MOST_NEWS
    subscriber = subscriber._replace(news={} if missed else news, open=open_jobs, fresh=missed)
    turn.state.put_subscriber(subscriber)
    return subscriber


def _looks_new(turn: Turn, subscriber: Subscriber) -> bool:
    if subscriber.topics == {"jobs"}:
        return False
    return (subscriber.revision, subscriber.sampled_at) != (turn.state.revision, turn.state.sampled_at)


def _tell(turn: Turn, subscriber: Subscriber) -> None:
    told = _changed_rows(turn, subscriber)
    if subscriber.news:
        told = {**told, "jobs": dict(subscriber.news), "open": subscriber.open}
    _send(turn, subscriber, "changed", told)


def _changed_rows(turn: Turn, subscriber: Subscriber) -> Document:
    """What is new in the tables; worked out once for all who were told the same before."""
    seen_by = viewer(turn.state.settings, subscriber.peer)
    key = ("changed", (seen_by, frozenset((topic, id(rows)) for topic, rows in subscriber.seen.items())))
    if key not in turn.told:
        told: Document = {}
        for topic, before in subscriber.seen.items():
            rows = _rows(turn, topic, seen_by)
            changed: dict[str, Document | None] = {name: row for name, row in rows.items() if before.get(name) != row}
            changed |= dict.fromkeys(before.keys() - rows.keys())
            if changed:
                told[topic] = changed
        turn.told[key] = told
    return turn.told[key]


def _send(turn: Turn, subscriber: Subscriber, kind: str, told: Document) -> None:
    """What it is told, and remember what it knows now."""
    state, unfinished = turn.state, subscriber.at is not None
    if told:
        message = turn.messages.setdefault(id(told), {kind: told})  # packed once for all who are told the same
        turn.emit(Send(subscriber.peer, message, droppable=not unfinished, more=unfinished))
    seen_by = viewer(state.settings, subscriber.peer)
    seen = {topic: _rows(turn, topic, seen_by) for topic in subscriber.topics & TABLES.keys()}
    told_at = turn.now if told else subscriber.told_at
    news = subscriber.news if unfinished else {}
    state.put_subscriber(
        subscriber._replace(
            seen=seen, news=news, revision=state.revision, sampled_at=state.sampled_at, told_at=told_at, fresh=False
        )
    )
