"""The life of a job, as the table `JOB` of model/lifecycle.py has it: its effects, one function each.

What is waiting is in the store and in the line, nowhere else; what is running is also in the state. How a run ends, and
how it is ended, is in runs.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from gpulease.broker.core import caps as capping
from gpulease.broker.core import dependencies as coming_after
from gpulease.broker.core import history as remembering
from gpulease.broker.core import learned as learning
from gpulease.broker.core import leases as lease_life
from gpulease.broker.core import notices as noticing
from gpulease.broker.core import packing, run_questions
from gpulease.broker.core.instructions import Hook, Remove
from gpulease.broker.core.leases import Releaser
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Dying
from gpulease.model import job as jobs
from gpulease.model import visible
from gpulease.model.job import Job
from gpulease.model.job_selection import job_number, line_id
from gpulease.model.values import Cause, Lease, Owner, Waiting
from gpulease.planner import Grant
from gpulease.protocol.messages import JobRow
from gpulease.render.jobs import end_text

SHOWN = frozenset(JobRow.__annotations__) - {"environment"}  # which a job has as a key of the store
NOT_TOLD = {"ending", "removing", "pid", "script", "script_time", "script_changed"}  # of a job that is over
FAILED_BEFORE = Cause("It comes after a job that failed.", "after a failed job")
ENDED_BY = ("killed", "removed")  # by a user, whose name follows
FREED = 100  # jobs that are let go, or killed, in one turn because of others

# -------------------------------------------------------------------- steps


def advance(turn: Turn, job: Job, event: str, **changes: Any) -> Job:
    """One step of a job, with all that follows from it."""
    after, effects = jobs.step(job, event, turn.now, **changes)
    for effect in effects:
        EFFECTS[effect](turn, job, after)
    turn.job_changed(after.id, job.state, after)
    return after


def start(turn: Turn, grant: Grant) -> None:
    before = turn.state.job(job_number(grant.id))
    assert before is not None
    turn.granted[before.id] = grant
    advance(
        turn, before, "start", tries=before.tries + 1, run=before.run + 1, started=turn.now, ended=None,
        devices=tuple(turn.state.labels(grant.devices)), exit_code=None, signal=None, why=None, out_of_memory=False,
        log_begin=0, log=_log_of_run(turn, before),
    )  # fmt: skip


def _log_of_run(turn: Turn, job: Job) -> str:
    """Where a broker in another folder would have put it, its user may make no folder."""
    moved = turn.state.moved
    return default_log(turn, job.uid, job.id) if moved and job.spec.log.startswith(f"{moved.folder}/") else job.spec.log


def kill_waiting(turn: Turn, job: Job, why: str) -> None:
    """A job that will never start."""
    advance(turn, job, "kill", ended=turn.now, why=why)


# -------------------------------------------------------------------- effects


def _write(turn: Turn, before: Job, after: Job) -> None:
    turn.state.write_job(after, None if before.state == jobs.NEW else before)


def join(turn: Turn, job: Job) -> None:
    """Into the line; when it comes after one that failed, it is killed in its turn."""
    state, met = turn.state, set(job.met)
    capping.keep(turn, job)
    others = state.job_states([id for id in job.spec.after if id not in met])
    open_ones = [id for id, found in others.items() if found in jobs.OPEN]
    over = {id: found for id, found in others.items() if found in jobs.ENDS}
    vain = next((id for id, found in over.items() if found != "complete" and not job.spec.after_any), None)
    if vain is not None:
        state.enter_line(_waiting(turn, job, FAILED_BEFORE))
        return turn.defer(partial(_kill_if_waiting, id=job.id, why=because(vain, str(over[vain]))))
    state.come_after(job.id, open_ones, over)
    state.enter_line(_waiting(turn, job, coming_after.cause(dict.fromkeys(open_ones))))
    return lease_life.look_again(turn)


def _waiting(turn: Turn, job: Job, blocked: Cause | None = None) -> Waiting:
    groups, request = turn.world.groups_of(job.uid), job.spec.request
    shape = learning.shape(turn, job.user, job.spec.command, job.spec.cwd, request)
    return Waiting(
        job.planner_id, request, job.user, job.uid, job.added, groups, "job", job.place, blocked, job.forced, shape,
        job.cap, packing.may_share(turn, request, shape), learning.expected(turn, job.user, request),
    )  # fmt: skip


def because(id: int, ended: str) -> str:
    return f"job {id}, which it comes after, is {ended}"


def _leave_line(turn: Turn, before: Job, after: Job) -> None:
    turn.state.leave_line(before.planner_id)
    if after.state not in jobs.RUNNING:
        learning.left(turn, before.planner_id)
    turn.state.come_after_none(before.id, before.spec.after)


def _hold_lease(turn: Turn, before: Job, after: Job) -> None:
    about, grant, request = turn.state.about, turn.granted.pop(after.id), after.spec.request
    owner = Owner(after.uid, after.user, about.host, about.boot_id, groups=turn.world.groups_of(after.uid))
    lease = Lease(
        grant.id, "job", grant.devices, owner, turn.now, None, grant.memory, request.priority, after.spec.note,
        request.duration, grant.max_leases, grant.shape, grant.outsiders, after.cap, grant.packed,
    )  # fmt: skip
    turn.state.hold(lease)
    turn.state.write_lease(lease)
    learning.started(turn, lease.id)
    noticing.job_granted(turn, after)
    waited = max(0.0, turn.now - before.added)
    remembering.began(turn, lease, waited, after.spec.label)
    lease_life.record(turn, "granted", lease, waited=waited)


def _launch(turn: Turn, before: Job, after: Job) -> None:
    if after.spec.time_limit is not None:
        turn.alarm(after.spec.time_limit, "time-limit", str(after.id))
    environment = turn.state.environment(after)
    run_questions.launch(turn, after, environment, _given(turn.state, after, environment))
    lease_life.look_again(turn)


def _given(state: State, job: Job, environment: dict[str, str]) -> dict[str, str]:
    """What every job gets in its environment."""
    lease = state.leases[job.planner_id]
    devices = [state.devices[uuid] for uuid in lease.devices if uuid in state.devices]
    asked = environment.get(visible.VARIABLE)
    by = asked if asked in visible.BY else state.settings.visible
    return {
        "GPULEASE_TOKEN": run_questions.token(state, job),
        "GPULEASE_JOB": str(job.id),
        "GPULEASE_LEASE": lease.id,
        "GPULEASE_DEVICES": ",".join(job.devices),
        **visible.variables(devices, by),
    }


def _end_lease(turn: Turn, before: Job, after: Job) -> None:
    """What was started for the run is forgotten with its lease."""
    state = turn.state
    state.forget_run(after.id)
    if not after.over:
        noticing.job_ended(turn, after)
    lease = state.leases.get(after.planner_id)
    why = after.why or (end_text(after.exit_code, after.signal) if after.exit_code else "it ended")
    if lease is not None:
        ending, _, by = why.partition(" by ")
        releaser = Releaser(by) if ending in ENDED_BY else None
        what = f"job {after.id} is {after.state}: {why}"
        return lease_life.end(turn, lease, what, releaser, cut=before.ending is not None or after.exit_code is None)
    fields = {"id": after.planner_id, "kind": "job", "user": after.user, "pid": before.pid, "why": why}
    return state.record(turn.now, "ended", **fields, devices=list(after.devices))


def _announce(turn: Turn, before: Job, after: Job) -> None:
    """Whoever waits for it, or wants to hear of it."""
    remembering.job_over(turn, after)
    hook = turn.state.settings.on_finish
    if hook:
        told = {name: value for name, value in jobs.document(after).items() if name in SHOWN - NOT_TOLD}
        turn.emit(Hook("on-finish", hook, f"job {after.id}", told))
    noticing.job_ended(turn, after)
    if after.id in turn.state.dependents:
        turn.defer(partial(_free_dependents, id=after.id, ended=after.state))
    if after.removing:
        turn.defer(partial(_forget_one, job=after))


def _free_dependents(turn: Turn, id: int, ended: str) -> None:
    """Let go who waited for a job only; who waited in vain is killed. Of many, some in each turn."""
    state, found = turn.state, turn.state.dependents.get(id, {})
    again = state.job_states([id])[id] in jobs.OPEN
    for waiting in list(islice(found, max(0, FREED - turn.freed))):
        turn.freed += 1
        left = state.met(id, waiting)
        other = None if ended == "complete" and left and not again else state.job(waiting)
        if other is not None and ended != "complete" and not other.spec.after_any:
            kill_waiting(turn, other, because(id, ended))
        elif other is not None and (again or not left):
            advance(turn, other, "edit", met=(*other.met, id) if again else other.met)
        else:
            state.block(line_id(waiting), coming_after.cause(state.awaited[waiting]))
    if found:
        turn.alarm(0.0, "free", f"{id} {ended}")
    else:
        state.dependents.drop(id)


def open_again(turn: Turn, id: int) -> None:
    """An ended job is to run once more. For those that come after it, it has ended all the same."""
    for waiting in list(turn.state.followed.get(id, ())):
        other = turn.state.job(waiting)
        if other is not None:
            turn.state.write_job(other._replace(met=(*other.met, id)), other)
    turn.state.followed.drop(id)


def free_later(turn: Turn, named: str) -> None:
    id, _, ended = named.partition(" ")
    _free_dependents(turn, int(id), ended)


def _kill_if_waiting(turn: Turn, id: int, why: str) -> None:
    job = turn.state.job(id)
    if job is not None and job.state == "waiting":
        kill_waiting(turn, job, why)


def _forget_one(turn: Turn, job: Job) -> None:
    forget(turn, [job])


def forget(turn: Turn, gone: list[Job]) -> None:
    """Remove ended jobs and what the queue itself wrote for them."""
    for job in gone:
        turn.state.forget_job(job)
        turn.job_changed(job.id, job.state, None)
    remove_logs(turn, gone)
    coming = {batch.environment for batch in turn.state.adding.values()}
    turn.state.forget_environments({job.spec.environment for job in gone} - coming)


def remove_logs(turn: Turn, gone: list[Job]) -> None:
    logs: dict[int, list[str]] = {}
    for job in gone:
        if job.run and job.spec.log == default_log(turn, job.uid, job.id):
            logs.setdefault(job.uid, []).append(job.spec.log)
    for uid, paths in logs.items():
        turn.emit(Remove(uid, tuple(paths)))


# -------------------------------------------------------------------- its processes


def default_log(turn: Turn, uid: int, id: int) -> str:
    return f"{turn.world.job_folder(uid)}/{id}.log"


def _end_tree(turn: Turn, before: Job, after: Job) -> None:
    """TERM to all of it, KILL after the grace. A run that is just being launched is ended once it is there."""
    state = turn.state
    if after.id not in state.dying:
        state.dying.put(after.id, Dying(since=turn.now))
        turn.alarm(state.settings.grace, "grace", str(after.id))
    press(turn, after, signal.SIGTERM, signal.SIGCONT)


def press(turn: Turn, job: Job, *gently: int) -> None:
    """KILL to what is left of a run that is being ended; within its grace what is gentler."""
    dying = turn.state.dying[job.id]
    if not dying.reading:
        run_questions.signal_tree(turn, job, *((signal.SIGKILL,) if dying.at_once else gently))


def stop_tree(turn: Turn, before: Job, after: Job) -> None:
    """One that is being ended has to get on with it."""
    if after.id not in turn.state.dying and after.ending is None:
        run_questions.signal_tree(turn, after, signal.SIGSTOP, every=True)


EFFECTS: dict[str, Callable[[Turn, Job, Job], None]] = {
    "write": _write,
    "join-line": lambda turn, before, after: join(turn, after),
    "leave-line": _leave_line,
    "hold-lease": _hold_lease,
    "launch": _launch,
    "end-lease": _end_lease,
    "announce": _announce,
    "stop-tree": stop_tree,
    "continue-tree": lambda turn, before, after: run_questions.signal_tree(turn, after, signal.SIGCONT),
    "end-tree": _end_tree,
}
