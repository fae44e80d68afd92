"""While nothing can be written: what ends a run, or frees room, works all the same.

A run is ended first, in memory; that it was is written when there is room again. Logs that are to go are removed at
once. Nothing else is acknowledged that a broker started anew would not know.
"""

from __future__ import annotations

from gpulease import job as jobs
from gpulease.broker import bulk, job_ends, job_life
from gpulease.broker.events import Due, Event, Launched, Received
from gpulease.broker.turn import Turn
from gpulease.job import RUNNING, Job

MOST = 1000  # jobs of one request that are looked at
WHY = {"kill": "killed", "rm": "removed", "clean": ""}


def act(turn: Turn, event: Event) -> list[int]:
    """The jobs whose runs began or are being ended; that is to be written later. None: nothing could be done."""
    if isinstance(event, Due) and event.what == "time-limit":
        job = turn.state.running.get(int(event.id))
        why = None if job is None else job_ends.why_over_time(turn, job)
        return [] if job is None or why is None else [_end(turn, job, why)]
    if isinstance(event, Launched):
        job_ends.launched(turn, event, written=False)
        return [event.id]
    if isinstance(event, Received) and event.message.get("do") in WHY:
        return _asked(turn, event)
    return []


def _asked(turn: Turn, event: Received) -> list[int]:
    verb, peer = event.message["do"], event.peer
    choice = bulk.choice(turn, event)
    rows = turn.state.store.jobs(choice.which, 1 if choice.last else MOST)
    found = [turn.state.running.get(row["id"]) or jobs.read(row) for row in rows]
    found = [job for job in found if choice.everyone or job.uid == peer.uid]
    again = event.progress is not None  # it was begun while there was room, and is tried again
    running = [job for job in found if job.state in RUNNING and verb != "clean" and not (again and job.ending)]
    ended = [_end(turn, job, f"{WHY[verb]} by {peer.user}", verb == "rm") for job in running]
    if verb != "kill":
        job_life.remove_logs(turn, [job for job in found if job.over or job in running])
    if ended and not again:
        left = [f"{job.id} is {job.state}, and the disk is full" for job in found if job not in running]
        turn.reply(peer, ids=ended, skipped=left, ending=ended)
    return ended


def _end(turn: Turn, job: Job, why: str, remove: bool = False) -> int:
    after = job._replace(ending=job.ending or why, removing=job.removing or remove)
    turn.state.change_job(after, job)
    job_life.EFFECTS["end-tree"](turn, job, after)
    return job.id


def write(turn: Turn, id: str) -> None:
    """There may be room again."""
    job = turn.state.running.get(int(id))
    if job is not None:
        turn.state.write_job(job, job)
