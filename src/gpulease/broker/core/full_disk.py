"""While nothing can be written: what ends a run or a wait, or frees room, works all the same.

It is done first, in memory; that it was is written when there is room again. Logs that are to go are removed at once.
Nothing else is acknowledged that a restarted broker would not know.
"""

from __future__ import annotations

from typing import Any

from gpulease.broker.core import bulk, jobs, requests, runs
from gpulease.broker.core.events import AlarmRang, BulkProgress, Event, Launched, Received
from gpulease.broker.core.turn import Turn
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import RUNNING
from gpulease.protocol.messages import Done, JobId

MOST = 1000  # jobs of one request that are looked at
WHY = {"kill": "killed", "rm": "removed", "clean": ""}


def act(turn: Turn, event: Event) -> list[AlarmRang]:
    """What to write later. If there is nothing, the client hears that nothing was done."""
    turn.in_memory = True
    if isinstance(event, AlarmRang) and event.what == "time-limit":
        return _jobs([int(event.id)]) if runs.time_limit_reached(turn, event.id) else []
    if isinstance(event, AlarmRang) and event.what == "deadline" and event.id in turn.state.requests.pending:
        turn.state.requests.unwritten.put(event.id, None)  # so that it is not taken out of the store either
        requests.deadline(turn, event.id)
        return [AlarmRang("forget-request", event.id)]
    if isinstance(event, Launched):
        runs.handle(turn, event)
        return _jobs([event.id])
    if isinstance(event, Received) and event.message.get("do") in WHY:
        return _jobs(_asked(turn, event))
    return []


def _jobs(ids: list[int]) -> list[AlarmRang]:
    return [AlarmRang("write-job", str(id)) for id in ids]


def _asked(turn: Turn, event: Received[Any]) -> list[int]:
    verb, peer = event.message["do"], event.peer
    choice = bulk.choice(turn, event)
    rows = turn.state.store.jobs(choice.which, 1 if choice.last else MOST)
    found = [turn.state.jobs.running.get(row["id"]) or model_jobs.read(row) for row in rows]
    found = [job for job in found if choice.everyone or job.uid == peer.uid]
    running = [job for job in found if job.state in RUNNING and verb != "clean"]
    for job in running:
        runs.kill(turn, job, f"{WHY[verb]} by {peer.user}", verb == "rm")
    ended = [job.id for job in running]
    if verb != "kill":
        jobs.remove_logs(turn, [job for job in found if job.over or job in running])
    if ended:
        before = bulk.gathered(event.progress) if isinstance(event.progress, BulkProgress) else []
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
