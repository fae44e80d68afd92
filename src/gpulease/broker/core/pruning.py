"""Forgetting what ended long ago, by age and by number, a little at a time."""

from __future__ import annotations

from gpulease.broker.core import jobs, learned
from gpulease.broker.core.turn import Turn
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import Job
from gpulease.model.store import Document, Which

EVERY = 60.0  # seconds between looks at whether there is something to forget
SOON = 0.05  # and while there is
PIECE = 100  # jobs that are forgotten in one turn
SELDOM = 600.0  # seconds between looks at the environments of ended jobs
ENVIRONMENTS = 500  # environments that are looked at in one turn
EVENTS = 1000  # events that are looked at in one turn
KEEP_EVENTS = 90 * 86400.0  # seconds
MAX_EVENTS = 1_000_000


def prune(turn: Turn) -> None:
    rows = _too_many(turn) or _too_old(turn)
    gone: list[Job] = list(map(model_jobs.read, rows))
    jobs.forget(turn, gone)
    events = turn.state.store.forget_events(turn.now - KEEP_EVENTS, MAX_EVENTS, EVENTS)
    learned.prune(turn)
    turn.alarm(SOON if len(gone) == PIECE or events == EVENTS else EVERY, "prune")


def forget_environments(turn: Turn, after: str) -> None:
    """Of jobs that ended a while ago: their variables may be secret, and few are run again. From the key `after` on."""
    state, longest = turn.state, turn.state.settings.keep_env_for
    looked = {} if longest is None else state.store.environments_in_use(turn.now - longest, after, ENVIRONMENTS)
    coming = {batch.environment for batch in state.jobs.adding.values()}
    state.jobs.drop_environments([key for key, in_use in looked.items() if not in_use and key not in coming])
    more = len(looked) == ENVIRONMENTS
    turn.alarm(SOON if more else SELDOM, "forget-environments", max(looked) if more else "")


def _too_many(turn: Turn) -> list[Document]:
    """The oldest of somebody who has more than are kept."""
    state, kept = turn.state, turn.state.settings.keep_ended
    for uid, number in state.jobs.over.items():
        if kept is not None and number > kept:
            return state.store.some_jobs(Which(model_jobs.ENDS, uid), min(PIECE, number - kept))[0]
    return []


def _too_old(turn: Turn) -> list[Document]:
    longest = turn.state.settings.keep_ended_for
    return [] if longest is None else turn.state.store.jobs_ended(turn.now - longest, PIECE)
