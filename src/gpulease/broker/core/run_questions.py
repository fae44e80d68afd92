"""What is asked of a user's agent about a run: launch it, find it, read its end. Only an answer to that is believed.

Each question has a deadline; a new agent is asked the same again (runs.py).
"""

from __future__ import annotations

import os

from gpulease.broker.core.instructions import Find, Launch, ReadEnd, Replace, RunPlace, SignalTree
from gpulease.broker.core.limits import log_limit_of
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import RunQuestion
from gpulease.broker.runs import Root
from gpulease.model.job import Job

LOOK = 5.0  # seconds between looks at what is overdue
PATIENCE = {"launch": 60.0, "find": 60.0, "read": 15.0}  # seconds until an agent that does not answer is replaced

# -------------------------------------------------------------------- asking


def launch(turn: Turn, job: Job, environment: dict[str, str], given: dict[str, str]) -> None:
    _ask(turn, job, "launch")
    turn.emit(Launch(job, place(turn, job), environment, given))


def find(turn: Turn, job: Job) -> None:
    _ask(turn, job, "find")
    turn.emit(Find(job, place(turn, job), root(turn.state, job)))


def read_end(turn: Turn, job: Job, code: int | None) -> None:
    _ask(turn, job, "read")
    turn.emit(ReadEnd(job, place(turn, job), code, turn.state.jobs.environment(job)))


def signal_tree(turn: Turn, job: Job, *signals: int, every: bool = False) -> None:
    """To a run whose shell is known. One that is just being launched or looked for is signalled once it is there."""
    if not root(turn.state, job).pid:
        return turn.state.jobs.unsent.put(job.id, (signals, every))
    turn.state.jobs.unsent.drop(job.id)  # an older one
    return turn.emit(SignalTree(job, place(turn, job), root(turn.state, job), signals, every))


def _ask(turn: Turn, job: Job, what: str) -> None:
    turn.state.jobs.asked.put(job.id, RunQuestion(what, turn.now))
    look_later(turn)


def look_later(turn: Turn) -> None:
    """One alarm for all that has a deadline."""
    if not turn.state.jobs.overdue_due:
        turn.state.jobs.overdue_due = True
        turn.alarm(LOOK, "overdue")


def answered(turn: Turn, id: int, run: int, what: str) -> Job | None:
    """The job whose run that was asked about; None when it was not asked, or is over."""
    job, asked = turn.state.jobs.running.get(id), turn.state.jobs.asked.get(id)
    if job is None or job.run != run or asked is None or asked.what != what:
        return None
    turn.state.jobs.asked.drop(id)
    return job


def replace_silent(turn: Turn) -> None:
    """Whoever left a question unanswered for too long hangs, or its user keeps it from acting."""
    state, silent = turn.state, set()
    for id, asked in list(state.jobs.asked.items()):
        if turn.now - asked.since >= PATIENCE[asked.what]:
            silent.add(state.jobs.running[id].uid)
            state.jobs.asked.put(id, asked._replace(since=turn.now))
    for uid in sorted(silent):
        turn.emit(Replace(uid))


# -------------------------------------------------------------------- where a run is


def notes(turn: Turn, uid: int) -> str:
    """The folder of the notes about a user's runs."""
    return f"{turn.world.job_folder(uid)}/runs"


def place(turn: Turn, job: Job) -> RunPlace:
    former = f"{_mark(turn.state, job)}/{job.uid}/journal"
    limit = log_limit_of(turn.state, job, turn.world.groups_of(job.uid))
    return RunPlace(f"{notes(turn, job.uid)}/{job.run_name}", former, limit)


def _mark(state: State, job: Job) -> str:
    """No other broker of this host has the same. Runs that began in another state folder keep that one's."""
    moved = state.jobs.moved
    former = moved is not None and job.started is not None and job.started < moved.at
    return moved.folder if former and moved is not None else os.path.join(state.about.kept, "jobs")


def token(state: State, job: Job) -> str:
    """The mark that its processes carry."""
    return f"{_mark(state, job)}:{job.run_name};"


def root(state: State, job: Job) -> Root:
    pid, since = state.jobs.roots.get(job.id, (job.pid or 0, None))
    return Root(pid, since, token(state, job), job.uid)
