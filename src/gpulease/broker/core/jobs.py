"""The life of a job, as the table `JOB` of model/lifecycle.py has it: its effects, one function each.

A waiting job is in the store and in the queue, nowhere else; a running job is also in the state. The effects on a
job's processes are in runs.py, which adds them to `EFFECTS`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from gpulease.broker.core import caps, dependencies, history, learned, leases, notices, packing
from gpulease.broker.core.instructions import CallHook, RemoveLogs
from gpulease.broker.core.leases import Releaser
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Batch
from gpulease.model import jobs as model_jobs
from gpulease.model import visible
from gpulease.model.job_selection import job_number, line_id
from gpulease.model.jobs import Job
from gpulease.model.store import Document, Which
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
    after, effects = model_jobs.step(job, event, turn.now, **changes)
    for effect in effects:
        EFFECTS[effect](turn, job, after)
    turn.job_changed(after.id, job.state, after)
    return after


def advance_batch(turn: Turn, batch: Batch, begin: int, end: int) -> None:
    """The step of jobs that are added together: the table's effects, each for all of these."""
    for effect in batch.effects:
        BATCH_EFFECTS[effect](turn, batch, begin, end)
    for job in batch.jobs(begin, end) if turn.state.subscribers else ():
        turn.job_changed(job.id, model_jobs.NEW, job)


def start(turn: Turn, grant: Grant) -> None:
    before = turn.state.jobs.get(job_number(grant.id))
    assert before is not None
    turn.granted[before.id] = grant
    advance(
        turn, before, "start", tries=before.tries + 1, run=before.run + 1, started=turn.now, ended=None,
        devices=tuple(turn.state.devices.labels(grant.devices)), exit_code=None, signal=None, why=None,
        out_of_memory=False, log_begin=0,
    )  # fmt: skip


def kill_waiting(turn: Turn, job: Job, why: str) -> None:
    """A job that will never start."""
    advance(turn, job, "kill", ended=turn.now, why=why)


# -------------------------------------------------------------------- effects


def write(turn: Turn, before: Job, after: Job) -> None:
    """Later, where nothing can be written now (full_disk.py)."""
    change = turn.state.jobs.change if turn.in_memory else turn.state.jobs.write
    change(after, None if before.state == model_jobs.NEW else before)


def _write_batch(turn: Turn, batch: Batch, begin: int, end: int) -> None:
    for id, document in batch.documents(begin, end):
        turn.state.store.write("jobs", str(id), document)
    turn.state.jobs.count(batch.uid, None, batch.state, end - begin)


def _join_batch(turn: Turn, batch: Batch, begin: int, end: int) -> None:
    for job in batch.jobs(begin, end):
        join(turn, job)


def join(turn: Turn, job: Job) -> None:
    """Into the queue. If it comes after a job that failed, it is killed in its turn."""
    state, met = turn.state, set(job.met)
    caps.keep(turn, job)
    others = state.jobs.states([id for id in job.spec.after if id not in met])
    open_ones = [id for id, found in others.items() if found in model_jobs.OPEN]
    over = {id: found for id, found in others.items() if found in model_jobs.ENDS}
    failed = next((id for id, found in over.items() if found != "complete" and not job.spec.after_any), None)
    if failed is not None:
        state.requests.enter_line(_waiting(turn, job, FAILED_BEFORE))
        return turn.defer(partial(_kill_if_waiting, id=job.id, why=because(failed, str(over[failed]))))
    state.jobs.add_dependencies(job.id, open_ones, over)
    state.requests.enter_line(_waiting(turn, job, dependencies.cause(dict.fromkeys(open_ones))))
    return leases.schedule_sample(turn)


def _waiting(turn: Turn, job: Job, blocked: Cause | None = None) -> Waiting:
    groups, request = turn.world.groups_of(job.uid), job.spec.request
    shape = learned.shape(turn, job.user, job.spec.command, job.spec.cwd, request)
    return Waiting(
        job.planner_id, request, job.user, job.uid, job.added, groups, "job", job.place, blocked, job.forced, shape,
        job.cap, packing.may_share(turn, request, shape), learned.expected(turn, job.user, request),
    )  # fmt: skip


def because(id: int, ended: str) -> str:
    return f"job {id}, which it comes after, is {ended}"


def _leave_line(turn: Turn, before: Job, after: Job) -> None:
    turn.state.requests.leave_line(before.planner_id)
    if after.state not in model_jobs.RUNNING:
        learned.never_started(turn, before.planner_id)
    turn.state.jobs.drop_dependencies(before.id, before.spec.after)


def _hold_lease(turn: Turn, before: Job, after: Job) -> None:
    about, grant, request = turn.state.about, turn.granted.pop(after.id), after.spec.request
    owner = Owner(after.uid, after.user, about.host, about.boot_id, groups=turn.world.groups_of(after.uid))
    lease = Lease(
        grant.id, "job", grant.devices, owner, turn.now, None, grant.memory, request.priority, after.spec.note,
        request.duration, grant.max_leases, grant.shape, grant.outsiders, after.cap, grant.packed,
    )  # fmt: skip
    turn.state.requests.hold(lease)
    turn.state.requests.write_lease(lease)
    learned.started(turn, lease.id)
    notices.job_granted(turn, after)
    waited = max(0.0, turn.now - before.added)
    history.lease_started(turn, lease, waited, after.spec.label)
    leases.record(turn, "granted", lease, waited=waited)


def given(state: State, job: Job, environment: dict[str, str]) -> dict[str, str]:
    """What every job gets in its environment, beside its mark."""
    lease = state.requests.leases[job.planner_id]
    devices = [state.devices.by_uuid[uuid] for uuid in lease.devices if uuid in state.devices.by_uuid]
    asked = environment.get(visible.VARIABLE)
    by = asked if asked in visible.BY else state.settings.visible
    return {
        "GPULEASE_JOB": str(job.id),
        "GPULEASE_LEASE": lease.id,
        "GPULEASE_DEVICES": ",".join(job.devices),
        **visible.variables(devices, by),
    }


def _end_lease(turn: Turn, before: Job, after: Job) -> None:
    """What was started for the run is forgotten with its lease."""
    state = turn.state
    state.jobs.runs.drop(after.id)
    if not after.over:
        notices.job_ended(turn, after)
    lease = state.requests.leases.get(after.planner_id)
    why = after.why or (end_text(after.exit_code, after.signal) if after.exit_code else "it ended")
    if lease is not None:
        ending, _, by = why.partition(" by ")
        releaser = Releaser(by) if ending in ENDED_BY else None
        what = f"job {after.id} is {after.state}: {why}"
        return leases.end(turn, lease, what, releaser, cut=before.ending is not None or after.exit_code is None)
    fields = {"id": after.planner_id, "kind": "job", "user": after.user, "pid": before.pid, "why": why}
    return state.record(turn.now, "ended", **fields, devices=list(after.devices))


def _announce(turn: Turn, before: Job, after: Job) -> None:
    """Tell the history, hooks, its user, and jobs that come after it."""
    history.job_ended(turn, after)
    hook = turn.state.settings.on_finish
    if hook:
        fields = {name: value for name, value in model_jobs.document(after).items() if name in SHOWN - NOT_TOLD}
        turn.emit(CallHook("on-finish", hook, f"job {after.id}", fields))
    notices.job_ended(turn, after)
    if after.id in turn.state.jobs.dependents:
        turn.defer(partial(_free_dependents, id=after.id, ended=after.state))
    if after.removing:
        turn.defer(partial(_forget_one, job=after))


def _free_dependents(turn: Turn, id: int, ended: str) -> None:
    """Release the jobs that waited only for this one; kill them if it did not end well. Of many, some in each turn."""
    state, found = turn.state, turn.state.jobs.dependents.get(id, {})
    again = state.jobs.states([id])[id] in model_jobs.OPEN
    for waiting in list(islice(found, max(0, FREED - turn.freed))):
        turn.freed += 1
        left = state.jobs.met(id, waiting)
        other = None if ended == "complete" and left and not again else state.jobs.get(waiting)
        if other is not None and ended != "complete" and not other.spec.after_any:
            kill_waiting(turn, other, because(id, ended))
        elif other is not None and (again or not left):
            advance(turn, other, "edit", met=(*other.met, id) if again else other.met)
        else:
            state.requests.block(line_id(waiting), dependencies.cause(state.jobs.awaited[waiting]))
    if found:
        turn.alarm(0.0, "free", f"{id} {ended}")
    else:
        state.jobs.dependents.drop(id)


def open_again(turn: Turn, id: int) -> None:
    """Run an ended job once more. For jobs that come after it, it has still ended."""
    for waiting in list(turn.state.jobs.followed.get(id, ())):
        other = turn.state.jobs.get(waiting)
        if other is not None:
            turn.state.jobs.write(other._replace(met=(*other.met, id)), other)
    turn.state.jobs.followed.drop(id)


def free_later(turn: Turn, named: str) -> None:
    id, _, ended = named.partition(" ")
    _free_dependents(turn, int(id), ended)


def _kill_if_waiting(turn: Turn, id: int, why: str) -> None:
    job = turn.state.jobs.get(id)
    if job is not None and job.state == "waiting":
        kill_waiting(turn, job, why)


def _forget_one(turn: Turn, job: Job) -> None:
    forget(turn, [job])


def forget(turn: Turn, gone: list[Job]) -> None:
    """Remove ended jobs and what the queue itself wrote for them."""
    for job in gone:
        turn.state.jobs.forget(job)
        turn.job_changed(job.id, job.state, None)
    remove_logs(turn, gone)
    coming = {batch.environment for batch in turn.state.jobs.adding.values()}
    turn.state.jobs.forget_environments({job.spec.environment for job in gone} - coming)


def remove_logs(turn: Turn, gone: list[Job]) -> None:
    logs: dict[int, list[str]] = {}
    for job in gone:
        if job.run and job.spec.log == default_log(turn, job.uid, job.id):
            logs.setdefault(job.uid, []).append(job.spec.log)
    for uid, paths in logs.items():
        turn.emit(RemoveLogs(uid, tuple(paths)))


def default_log(turn: Turn, uid: int, id: int) -> str:
    return f"{turn.world.job_folder(uid)}/{id}.log"


EFFECTS: dict[str, Callable[[Turn, Job, Job], object]] = {
    "write": write,
    "join-line": lambda turn, before, after: join(turn, after),
    "leave-line": _leave_line,
    "hold-lease": _hold_lease,
    "end-lease": _end_lease,
    "announce": _announce,
}
BATCH_EFFECTS: dict[str, Callable[[Turn, Batch, int, int], None]] = {"write": _write_batch, "join-line": _join_batch}


# -------------------------------------------------------------------- forgetting


PRUNE_INTERVAL = 60.0  # seconds between looks at whether there is something to forget
SOON = 0.05  # and while there is
FORGOTTEN = 100  # jobs that are forgotten in one turn
ENVIRONMENTS_INTERVAL = 600.0  # seconds between looks at the environments of ended jobs
ENVIRONMENTS = 500  # environments that are looked at in one turn
EVENTS = 1000  # events that are looked at in one turn
KEEP_EVENTS = 90 * 86400.0  # seconds
MAX_EVENTS = 1_000_000


def prune(turn: Turn) -> None:
    rows = _too_many(turn) or _too_old(turn)
    gone: list[Job] = list(map(model_jobs.read, rows))
    forget(turn, gone)
    events = turn.state.store.forget_events(turn.now - KEEP_EVENTS, MAX_EVENTS, EVENTS)
    learned.prune(turn)
    turn.alarm(SOON if len(gone) == FORGOTTEN or events == EVENTS else PRUNE_INTERVAL, "prune")


def forget_environments(turn: Turn, after: str) -> None:
    """Of jobs that ended a while ago: their variables may be secret, and few are run again. From the key `after` on."""
    state, longest = turn.state, turn.state.settings.keep_env_for
    looked = {} if longest is None else state.store.environments_in_use(turn.now - longest, after, ENVIRONMENTS)
    coming = {batch.environment for batch in state.jobs.adding.values()}
    state.jobs.drop_environments([key for key, in_use in looked.items() if not in_use and key not in coming])
    more = len(looked) == ENVIRONMENTS
    turn.alarm(SOON if more else ENVIRONMENTS_INTERVAL, "forget-environments", max(looked) if more else "")


def _too_many(turn: Turn) -> list[Document]:
    """The oldest of somebody who has more than are kept."""
    state, kept = turn.state, turn.state.settings.keep_ended
    for uid, number in state.jobs.over.items():
        if kept is not None and number > kept:
            return state.store.some_jobs(Which(model_jobs.ENDS, uid), min(FORGOTTEN, number - kept))[0]
    return []


def _too_old(turn: Turn) -> list[Document]:
    longest = turn.state.settings.keep_ended_for
    return [] if longest is None else turn.state.store.jobs_ended(turn.now - longest, FORGOTTEN)
