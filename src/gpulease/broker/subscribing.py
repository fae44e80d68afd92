"""Clients that are told of changes as they are committed: of devices, leases, the line, and jobs.

A subscriber gets a snapshot, then what changed. One that does not read what it is sent costs no more memory: what it
missed is left out, and it gets a fresh snapshot once it has read the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from gpulease import job as jobs
from gpulease.broker import lease_life, reports
from gpulease.broker.core_state import Subscriber
from gpulease.broker.events import Received
from gpulease.broker.instructions import Send
from gpulease.broker.job_verbs import chosen, missing
from gpulease.broker.peer import Peer
from gpulease.broker.turn import Turn
from gpulease.errors import NotFound, UsageError
from gpulease.job import Job
from gpulease.messages import Message
from gpulease.stores.base import Document

TELL = 0.05  # seconds between words to one client, unless all it waits for is over: each costs as much as a job's start
ROWS = 10_000  # of one message
RANGES = 400  # of one question to the store
TABLES: dict[str, Callable[[Turn], dict[str, Document]]] = {
    "devices": reports.device_rows,
    "leases": reports.lease_rows,
    "line": reports.line_rows,
}
TOPICS = (*TABLES, "jobs")


def subscribe(turn: Turn, event: Received) -> None:
    peer, message = event.peer, event.message
    topics = frozenset(message["topics"])
    strange = sorted(topics - set(TOPICS))
    if strange or not topics:
        raise UsageError(f"There is no topic {(strange or [''])[0][:40]!r}.", f"There are: {', '.join(TOPICS)}.")
    chosen_jobs = None if message.get("select") is None else frozenset(_choose(turn, event))
    turn.state.put_subscriber(Subscriber(peer, topics, chosen_jobs))
    _snapshot(turn, turn.state.subscribers[peer])
    lease_life.look_again(turn)


def _choose(turn: Turn, event: Received) -> list[int]:
    select = event.message["select"]
    found = chosen(turn, event.peer, select)
    absent = missing(found, select)
    if absent:
        raise NotFound(f"Job {absent[0]} is not there, or not yours.", "See the ids with `gpulease ls --all`.")
    return [job.id for job in found]


def left(turn: Turn, peer: Peer) -> None:
    turn.state.drop_subscriber(peer)


def drained(turn: Turn, peer: Peer) -> None:
    """It has read what it was sent, and missed something since."""
    subscriber = turn.state.subscribers.get(peer)
    if subscriber is not None:
        _snapshot(turn, subscriber)


# -------------------------------------------------------------------- the snapshot


def _snapshot(turn: Turn, subscriber: Subscriber) -> None:
    seen = {topic: TABLES[topic](turn) for topic in subscriber.topics if topic in TABLES}
    told: Message = dict(seen)
    rows: list[Document] = []
    open_jobs = 0
    if "jobs" in subscriber.topics:
        open_jobs = _open(turn, subscriber)
        rows = [_row(job) for job in _shown_jobs(turn, subscriber)]
        told |= {"jobs": _by_id(rows[:ROWS]), "open": open_jobs}
    _send(turn, subscriber, {"snapshot": told}, seen, open_jobs)
    for first in range(ROWS, len(rows), ROWS):
        turn.emit(Send(subscriber.peer, {"changed": {"jobs": _by_id(rows[first : first + ROWS]), "open": open_jobs}}))


def _by_id(rows: Iterable[Document]) -> dict[str, Document]:
    return {str(row["id"]): row for row in rows}


def _open(turn: Turn, subscriber: Subscriber) -> int:
    if subscriber.jobs is None:
        return sum(turn.state.counts.get(state, 0) for state in jobs.OPEN)
    return sum(not job.over for job in _jobs(turn, subscriber.jobs))


def _shown_jobs(turn: Turn, subscriber: Subscriber) -> Iterator[Job]:
    """Those that wait are counted only: there may be a hundred thousand."""
    found = turn.state.running.values() if subscriber.jobs is None else _jobs(turn, subscriber.jobs)
    return (job for job in found if job.state not in ("waiting", "held"))


def _jobs(turn: Turn, ids: frozenset[int]) -> Iterator[Job]:
    ranges = list(_ranges(sorted(ids)))
    for first in range(0, len(ranges), RANGES):
        for row in turn.state.store.jobs(ids=ranges[first : first + RANGES]):
            yield turn.state.running.get(row["id"]) or jobs.read(row)


def _ranges(ids: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for at in range(1, len(ids) + 1):
        if at == len(ids) or ids[at] != ids[at - 1] + 1:
            yield ids[start], ids[at - 1]
            start = at


def _row(job: Job) -> Document:
    return {"id": job.id, "state": job.state, "exit_code": job.exit_code}


# -------------------------------------------------------------------- changes


def tell(turn: Turn) -> None:
    """At the end of a turn: whoever has something to hear, hears it now, or soon."""
    for subscriber in list(turn.state.subscribers.values()):
        subscriber = _with_news(turn, subscriber)
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
    if "jobs" not in subscriber.topics or not turn.changed_jobs:
        return subscriber
    news, open_jobs = dict(subscriber.news), subscriber.open
    for id, (before, after) in turn.changed_jobs.items():
        if subscriber.jobs is None or id in subscriber.jobs:
            news[str(id)] = None if after is None else _row(after)
            open_jobs += (after is not None and not after.over) - (before in jobs.OPEN)
    if len(news) == len(subscriber.news) and open_jobs == subscriber.open:
        return subscriber
    subscriber = subscriber._replace(news=news, open=open_jobs)
    turn.state.put_subscriber(subscriber)
    return subscriber


def _looks_new(turn: Turn, subscriber: Subscriber) -> bool:
    if subscriber.topics == {"jobs"}:
        return False
    return (subscriber.revision, subscriber.sampled_at) != (turn.state.revision, turn.state.sampled_at)


def _tell(turn: Turn, subscriber: Subscriber) -> None:
    seen = {topic: TABLES[topic](turn) for topic in subscriber.topics if topic in TABLES}
    told: Message = {}
    for topic, rows in seen.items():
        before = subscriber.seen.get(topic, {})
        changed: dict[str, Document | None] = {key: row for key, row in rows.items() if before.get(key) != row}
        changed |= dict.fromkeys(before.keys() - rows.keys())
        if changed:
            told[topic] = changed
    if subscriber.news:
        told |= {"jobs": dict(subscriber.news), "open": subscriber.open}
    _send(turn, subscriber, {"changed": told} if told else None, seen, subscriber.open)


def _send(
    turn: Turn, subscriber: Subscriber, message: Message | None, seen: dict[str, dict[str, Document]], open_jobs: int
) -> None:
    if message is not None:
        turn.emit(Send(subscriber.peer, message, droppable=True))
    state, told_at = turn.state, subscriber.told_at if message is None else turn.now
    state.put_subscriber(
        subscriber._replace(
            open=open_jobs, seen=seen, news={}, revision=state.revision, sampled_at=state.sampled_at, told_at=told_at
        )
    )
