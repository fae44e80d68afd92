"""The GPU memory of jobs: which are packed, what they are seen to use, and what one asks for that ran out of it.

A packed job of which nothing is known has its device alone. Once what it was seen to use has not risen for a while, its
lease becomes a share of that size, and others may come. How shares are placed is the planner's matter.
"""

from __future__ import annotations

from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import PeakMemory
from gpulease.model import jobs as model_jobs
from gpulease.model.jobs import Job
from gpulease.model.quantities import format_bytes
from gpulease.model.values import Lease, Request, Waiting
from gpulease.planner.board import admits
from gpulease.planner.packing import may_pack, raised, superfluous

MAX_SHAPES = 64  # in the line at once, since each costs every plan a little; the jobs of others have a device alone


def may_share(turn: Turn, request: Request, shape: str | None) -> bool:
    """Whether a job that enters the queue is packed."""
    state = turn.state
    if shape is None or not may_pack(request, state.settings.pack == "measured"):
        return False
    there = state.requests.line.packed_shapes
    return shape in there or len(there) < MAX_SHAPES


def observe(turn: Turn) -> None:
    """A sample came in: the most memory that each job was seen to use."""
    state = turn.state
    for job in list(state.jobs.running.values()):
        lease = state.requests.leases.get(job.planner_id)
        used = 0 if lease is None else sum(_used(turn, job, uuid, lease.memory is None) for uuid in lease.devices)
        if used > (job.peak_memory or 0):
            state.jobs.change(job._replace(peak_memory=used), job)
        if lease is not None and lease.packed:
            _see(turn, job, lease, used)


def _used(turn: Turn, job: Job, uuid: str, whole: bool) -> int:
    """On a whole device all of its user's processes are the job's; on a share those of its session."""
    device = turn.state.devices.by_uuid.get(uuid)
    processes = (device.processes if device is not None else None) or ()
    ours = turn.state.devices.placeholders  # of the same user, where the broker is the user's own
    others = [one for one in processes if (one.pid, one.start_time) not in ours]
    mine = [one for one in others if one.user == job.user and (whole or one.session == job.pid)]
    return sum(process.memory or 0 for process in mine)


def _see(turn: Turn, job: Job, lease: Lease, used: int) -> None:
    """A sample came in, and a packed job uses this many bytes of its device."""
    state, before = turn.state, turn.state.jobs.seen.get(job.id)
    if used and (before is None or used > before.memory):
        state.jobs.seen.put(job.id, PeakMemory(used, turn.now))
    seen = state.jobs.seen.get(job.id)
    if seen is None:
        return
    settled = turn.now - seen.since >= state.settings.pack_after
    if settled if lease.memory is None else seen.memory > lease.memory:
        state.requests.change_lease(lease._replace(memory=seen.memory, max_leases=state.policy.pack_most - 1))
        _learn(turn, lease.shape, seen.memory)


def ended(turn: Turn, job: Job, complete: bool, out_of_memory: bool) -> None:
    """A run is over. What one that failed had used by then says little of the next."""
    state, seen, lease = turn.state, turn.state.jobs.seen.get(job.id), turn.state.requests.leases.get(job.planner_id)
    state.jobs.seen.drop(job.id)
    if lease is None or lease.shape is None:
        return
    if out_of_memory:
        state.learned.peaks.drop(lease.shape)  # it was too little for one of them: the next is alone again
        turn.save_soon()
    elif complete and seen is not None:
        _learn(turn, lease.shape, seen.memory)
    elif complete and job.peak_memory and len(lease.devices) == 1:
        _learn(turn, lease.shape, job.peak_memory)


def recall(turn: Turn, lease: Lease) -> None:
    """What the last broker learnt of a job that runs, and may not have written down by itself."""
    if lease.memory is not None and lease.packed:
        _learn(turn, lease.shape, lease.memory)


def shares(turn: Turn, job: Job) -> bool:
    """Whether a job runs packed, beside others or so that others may come."""
    lease = turn.state.requests.leases.get(job.planner_id)
    return lease is not None and lease.packed and lease.memory is not None


def _learn(turn: Turn, shape: str | None, memory: int) -> None:
    state = turn.state
    if shape is None:
        return
    state.learned.peaks.put(shape, raised(state.learned.peaks, shape, memory, turn.now))
    for old in superfluous(state.learned.peaks, turn.now):
        state.learned.peaks.drop(old)
    turn.save_soon()


def describe(turn: Turn, job: Job) -> str | None:
    """What people see about it, if it is packed."""
    state, id = turn.state, job.planner_id
    holder: Lease | Waiting | None = state.requests.leases.get(id)
    if holder is None and id in state.requests.line:
        holder = state.requests.line[id]
    if holder is None or holder.shape is None or not holder.packed:
        return None
    peak = state.learned.peaks.get(holder.shape)
    memory = holder.memory if isinstance(holder, Lease) else None if peak is None else peak.memory
    return "alone until its memory use is known" if memory is None else f"seen {format_bytes(memory)}"


def asking_for_more(turn: Turn, job: Job) -> Request:
    """After it ran out of memory: of a share a whole device, and of whole ones larger ones, where there are such."""
    state, request = turn.state, model_jobs.after_out_of_memory(job.spec.request)
    least = min(
        (one.memory_total or 0 for one in state.devices.by_uuid.values() if one.label in job.devices), default=0
    )
    more = request._replace(min_memory=least + 1)
    larger = [
        one for one in state.devices.by_uuid.values() if one.uuid not in state.devices.excluded and admits(more, one)
    ]
    asks = job.spec.request.memory is None and not request.mig and least and len(larger) >= request.gpus
    return more if asks else request
