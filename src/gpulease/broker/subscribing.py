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
    turn.state.put_subscriber(Subscriber(peer, topics, chosen_jobs))  # its snapshot is taken at the end of the turn
    lease_life.look_again(turn)


def _choose(turn: Turn, event: Received) -> list[int]:
    select = event.message["select"]
    found = chosen(turn, event.peer, select)
    absent = missing(found, select)
    if absent:
        raise NotFound(f"Job {absent[0]} is not there, or not yours.", "See the ids with `gpulease ls --all`.")
    return [job.id for job in found]


def drained(turn: Turn, peer: Peer) -> None:
    """It has read what it was sent, and missed something since."""
    subscriber = turn.state.subscribers.get(peer)
    if subscriber is not None:
        turn.state.put_subscriber(subscriber._replace(fresh=True))


# -------------------------------------------------------------------- the snapshot


def _snapshot(turn: Turn, subscriber: Subscriber) -> None:
    told: Message = {topic: _rows(turn, topic) for topic in subscriber.topics if topic in TABLES}
    if "jobs" in subscriber.topics:
        rows, open_jobs = _jobs_now(turn, subscriber)
        subscriber = subscriber._replace(open=open_jobs)
        told |= {"jobs": rows, "open": open_jobs}
    _send(turn, subscriber, "snapshot", told)


def _rows(turn: Turn, topic: str) -> dict[str, Document]:
    if topic not in turn.rows:
        turn.rows[topic] = TABLES[topic](turn)
    return turn.rows[topic]


def _jobs_now(turn: Turn, subscriber: Subscriber) -> tuple[dict[str, Document], int]:
    """Rows of jobs, and how many are not over. Those that wait are counted only: there may be a hundred thousand."""
    if subscriber.jobs is None:
        found: Iterable[Job] = turn.state.running.values()
        open_jobs = sum(turn.state.counts.get(state, 0) for state in jobs.OPEN)
    else:
        found = list(_jobs(turn, subscriber.jobs))
        open_jobs = sum(not job.over for job in found)
    return {str(job.id): _row(job) for job in found if job.state not in ("waiting", "held")}, open_jobs


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
        if subscriber.fresh:
            _snapshot(turn, subscriber)
            continue
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
    if news == subscriber.news and open_jobs == subscriber.open:
        return subscriber
    subscriber = subscriber._replace(news=news, open=open_jobs)
    turn.state.put_subscriber(subscriber)
    return subscriber


def _looks_new(turn: Turn, subscriber: Subscriber) -> bool:
    if subscriber.topics == {"jobs"}:
        return False
    return (subscriber.revision, subscriber.sampled_at) != (turn.state.revision, turn.state.sampled_at)


def _tell(turn: Turn, subscriber: Subscriber) -> None:
    told: Message = {}
    for topic in subscriber.topics & TABLES.keys():
        rows, before = _rows(turn, topic), subscriber.seen.get(topic, {})
        changed: dict[str, Document | None] = {key: row for key, row in rows.items() if before.get(key) != row}
        changed |= dict.fromkeys(before.keys() - rows.keys())
        if changed:
            told[topic] = changed
    if subscriber.news:
        told |= {"jobs": dict(subscriber.news), "open": subscriber.open}
    _send(turn, subscriber, "changed", told)


def _send(turn: Turn, subscriber: Subscriber, kind: str, told: Message) -> None:
    """In as many messages as there must be; and remember what it knows now."""
    state, told_at = turn.state, turn.now if told else subscriber.told_at
    jobs_told = list(told.get("jobs", {}).items())
    if told:
        first = {**told, "jobs": dict(jobs_told[:ROWS])} if "jobs" in told else told
        turn.emit(Send(subscriber.peer, {kind: first}, droppable=True))
    for at in range(ROWS, len(jobs_told), ROWS):
        more = {"jobs": dict(jobs_told[at : at + ROWS]), "open": subscriber.open}
        turn.emit(Send(subscriber.peer, {"changed": more}))
    seen = {topic: _rows(turn, topic) for topic in subscriber.topics & TABLES.keys()}
    state.put_subscriber(
        subscriber._replace(
            seen=seen, news={}, revision=state.revision, sampled_at=state.sampled_at, told_at=told_at, fresh=False
        )
    )
