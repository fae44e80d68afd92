"""How many jobs of one sweep run at a time (`--at-most`).

The number belongs to the sweep: each job knows its sweep, by the id of the first, and the state has the number. A job
keeps the number that it was given too, for when it is run again after its sweep was forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpulease.broker.core.events import Received
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Cap
from gpulease.errors import TooMuch, UsageError
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import Job
from gpulease.model.store import Which
from gpulease.planner.policy import UNLIMITED

MAX_CAPS = 100  # sweeps with a number, of one user, that are not over: a plan looks at each


def begin(turn: Turn, job: Job, last: int) -> None:
    """The sweep of a job, up to the id `last`, gets the number that the job has."""
    if job.cap is None:
        return
    over = [] if job.cap in turn.state.jobs.caps else _superfluous(turn, job)
    for cap in over:
        turn.state.jobs.put_cap(cap, None)
    turn.state.jobs.put_cap(job.cap, Cap(UNLIMITED if job.spec.at_most is None else job.spec.at_most, job.uid, last))


def _superfluous(turn: Turn, job: Job) -> list[int]:
    """Sweeps to forget, where too many are known."""
    mine = {id: cap for id, cap in turn.state.jobs.caps.items() if cap.uid == job.uid}
    if len(mine) < MAX_CAPS:
        return []
    counts = {
        id: turn.state.store.count_jobs(Which(model_jobs.OPEN, cap.uid, ids=[(id, cap.last)]))
        for id, cap in mine.items()
    }
    over = [id for id, count in counts.items() if not count]
    if not over:
        what = f"{MAX_CAPS} of your sweeps with `at-most` are not over, and more are not taken."
        raise TooMuch(what, "Let one end, or leave `at-most` out.")
    return over


def keep(turn: Turn, job: Job) -> None:
    """A job that waits again, whose sweep was over and forgotten."""
    if job.cap is not None and job.cap not in turn.state.jobs.caps and job.spec.at_most is not None:
        turn.state.jobs.put_cap(job.cap, Cap(job.spec.at_most, job.uid, turn.state.jobs.number))


def limit_of(state: State, job: Job) -> int | None:
    """The number of its sweep as it is now."""
    found = state.jobs.caps.get(job.cap or 0)
    value = job.spec.at_most if found is None else found.most
    return None if value == UNLIMITED else value


def named(event: Received[Any], chosen: Iterable[Job]) -> Received[Any]:
    """An edit with the sweep that jobs without one become, whatever its client says: by the id of the first."""
    first = next((job.id for job in chosen if job.cap is None), None)
    return event._replace(message={**event.message, "cap": first})


def edited(job: Job, sweep: int | None) -> int:
    """The sweep of a job that gets a number; `sweep` is that of jobs that are in none."""
    cap = sweep if job.cap is None else job.cap
    if cap is None:
        raise UsageError(f"Job {job.id} is in no sweep, and others are.", "Edit them apart.")
    return cap
