"""While nothing can be written: what ends a run or a wait, or frees room, works all the same.

It is done first, in memory; that it was is written when there is room again. Logs that are to go are removed at once.
Nothing else is acknowledged that a broker started anew would not know.
"""

from __future__ import annotations

from gpulease.broker.core import bulk
from gpulease.broker.core import jobs as job_life
from gpulease.broker.core import requests as requesting
from gpulease.broker.core import runs as job_ends
from gpulease.broker.core.events import Due, Event, Launched, Progress, Received
from gpulease.broker.core.turn import Turn
from gpulease.model import job as jobs
from gpulease.model.job import RUNNING
from gpulease.protocol.messages import Done, JobId

MOST = 1000  # jobs of one request that are looked at
WHY = {"kill": "killed", "rm": "removed", "clean": ""}


def act(turn: Turn, event: Event) -> list[Due]:
    """What is to be written later. Nothing: who asked is told that nothing could be done."""
    turn.in_memory = True
    if isinstance(event, Due) and event.what == "time-limit":
        return _jobs([int(event.id)]) if job_ends.over_time(turn, event.id) else []
    if isinstance(event, Due) and event.what == "deadline" and event.id in turn.state.requests.pending:
        turn.state.requests.unwritten.put(event.id, None)  # so that it is not taken out of the store either
        requesting.deadline(turn, event.id)
        return [Due("forget-request", event.id)]
    if isinstance(event, Launched):
        job_ends.heard(turn, event)
        return _jobs([event.id])
    if isinstance(event, Received) and event.message.get("do") in WHY:
        return _jobs(_asked(turn, event))
    return []


def _jobs(ids: list[int]) -> list[Due]:
    return [Due("write-job", str(id)) for id in ids]


def _asked(turn: Turn, event: Received) -> list[int]:
    verb, peer = event.message["do"], event.peer
    choice = bulk.choice(turn, event)
    rows = turn.state.store.jobs(choice.which, 1 if choice.last else MOST)
    found = [turn.state.jobs.running.get(row["id"]) or jobs.read(row) for row in rows]
    found = [job for job in found if choice.everyone or job.uid == peer.uid]
    running = [job for job in found if job.state in RUNNING and verb != "clean"]
    for job in running:
        job_ends.kill(turn, job, f"{WHY[verb]} by {peer.user}", verb == "rm")
    ended = [job.id for job in running]
    if verb != "kill":
        job_life.remove_logs(turn, [job for job in found if job.over or job in running])
    if ended:
        before = bulk.gathered(event.progress) if isinstance(event.progress, Progress) else []
        done: list[JobId] = sorted({*before, *ended})
        left = [f"{job.id} is {job.state}, and the disk is full" for job in found if job.id not in done]
        turn.reply(peer, Done(ids=done, skipped=left, ending=[*ended]))
    return ended


def write(turn: Turn, id: str) -> None:
    """There may be room again."""
    job = turn.state.jobs.running.get(int(id))
    if job is not None:
        turn.state.jobs.write(job, job)


def forget_request(turn: Turn, id: str) -> None:
    if id not in turn.state.requests.pending:
        turn.state.store.write("line", id, None)
