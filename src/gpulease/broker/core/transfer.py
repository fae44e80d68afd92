"""A job that goes to another host by `gpulease rebalance`: the end of the original here, or the release of a copy here.

What a user does in between counts: an original that was changed stays, and a copy starts only by its token.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gpulease.broker.core import jobs
from gpulease.broker.core.events import Received
from gpulease.broker.core.turn import Turn
from gpulease.errors import UsageError
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import ranges
from gpulease.model.jobs import Job
from gpulease.protocol.messages import Copied, Done, JobId, MovedRequest

IN_MOVE = "being moved here by `gpulease rebalance`"
FINISH = "Run `gpulease rebalance` again: it finishes the move. Or remove it here with `gpulease rm`."


def moved(turn: Turn, event: Received[MovedRequest]) -> None:
    """Remove those that wait as they were copied. That it was this, and no `rm` by hand, is an event."""
    ids: list[JobId] = []
    skipped: list[str] = []
    message = event.message
    for move in message["jobs"]:
        job, to = _own(turn, event, move), move.get("to")
        if not to:
            raise UsageError("Invalid new id of the moved job.", "Give its new id, as gpu2:26.")
        stays = "not there any more" if job is None else _stays(turn, job, move.get("changed"))
        if job is None or stays is not None:
            skipped.append(f"{move['id']} is {stays}")
            continue
        ids.append(job.id)
        why = f"moved to {to}"
        jobs.advance(turn, job, "kill", ended=turn.now, why=why, notify=())
        turn.state.record(turn.now, "moved", id=job.planner_id, kind="job", user=job.user, why=why)
        turn.defer(partial(_forget, id=job.id))
    turn.reply(event.peer, Done(ids=ids, skipped=skipped))


def _stays(turn: Turn, job: Job, changed: object) -> str | None:
    after = turn.state.jobs.dependents.get(job.id)
    if job.state != "waiting":
        return job.state
    if after:
        return followed(list(after))
    return None if changed_at(job) == changed else "not as it was copied: it was changed since"


def followed(after: list[int]) -> str:
    return f"what job {ranges(after)} comes after"


def _forget(turn: Turn, id: int) -> None:
    job = turn.state.jobs.get(id)
    if job is not None and job.over:
        jobs.forget(turn, [job])


def let_go(turn: Turn, event: Received[MovedRequest]) -> None:
    """Copies whose originals are gone: each by the token with which it was added."""
    ids: list[JobId] = []
    message = event.message
    for copy in message["jobs"]:
        job = _own(turn, event, copy)
        if job is None or job.spec.transfer is None or job.spec.transfer != copy.get("token"):
            continue
        ids.append(job.id)
        if job.state == "held":
            jobs.advance(turn, job, "let-go", transfer=None, why=None)
        else:  # it was killed by hand: from now on it is a job as any other
            turn.state.jobs.write(model_jobs.changed(job, transfer=None), job)
    turn.reply(event.peer, Done(ids=ids, skipped=[]))


def _own(turn: Turn, event: Received[Any], named: Copied) -> Job | None:
    job = turn.state.jobs.get(named["id"])
    return job if job is not None and job.uid == event.peer.uid else None


def changed_at(job: Job) -> float:
    """The moment of its last step: it was queued, edited, moved in the queue or put back."""
    return job.history[-1].time if job.history else job.added


def in_move(job: Job) -> str | None:
    """Why a copy cannot be started by hand: its original may still run on its host."""
    return None if job.spec.transfer is None or job.state in model_jobs.RUNNING else IN_MOVE
