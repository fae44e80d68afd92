"""Grants: the plan, the check of the devices before each grant, and the grants themselves.

No device is given without a check of it that was taken after its last lease ended, while no neighbour may choose.
A plan belongs to a revision of the state: when that has moved on, another plan is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from gpulease.broker.core import jobs, leases, notices
from gpulease.broker.core.events import Checked, CheckRefused, Occupancy
from gpulease.broker.core.instructions import Unlock
from gpulease.broker.core.limits import allowance, longest
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import FRESH_FOR, Turn
from gpulease.broker.core.values import Blocker, Checking, Idle, Refused
from gpulease.model.values import Cause
from gpulease.planner import Grant, Plan, lease_of, of_user, plan
from gpulease.planner.forecast import KnownEnds

RETRY = 0.05  # seconds between checks, while a user of a neighbour chooses
QUIET_PERIOD = 0.5  # seconds that it may be held before anybody is told: another broker needs milliseconds
FIRST_RETRY = 0.005  # seconds between looks during these
MEMORY_CHECK_INTERVAL = 5.0  # seconds between looks at the host's memory while it is low
PAUSED = Cause("The queue is paused; `gpulease resume --queue` goes on.", "queue paused")
BEING_KILLED = Cause("Jobs of its user are being killed, and none starts until that is done.", "jobs being killed")
LOST_DEVICE = Occupancy(None, None, "the driver does not know it any more")
GAP = 1.0  # seconds between two refusals for safe-gpu's lock that count as one
FORGIVEN = 0.1  # seconds that are forgiven for each in which nobody was kept waiting
PLAN_AGE_LIMIT = 1.0  # seconds after which a reason that speaks of time is worked out again

# -------------------------------------------------------------------- the plan


def current_plan(turn: Turn) -> Plan:
    """The plan for what is known now."""
    planned, state = turn.planned, turn.state
    old = planned.plan is None or turn.now - planned.plan.now > PLAN_AGE_LIMIT or turn.now >= planned.wake
    if old or planned.revision != state.revision:
        closed, again = _job_stops(turn)
        planned.plan = _plan(turn, closed, state.devices.neighbour_holds)
        planned.revision = state.revision
        _wake(turn, min(again, planned.plan.next_wakeup or inf))
    assert planned.plan is not None
    return planned.plan


def fresh_plan(turn: Turn) -> Plan:
    """A plan of the queue as it is at this moment, which is not kept."""
    return _plan(turn, _job_stops(turn, True)[0], turn.state.devices.neighbour_holds)


def wanted(turn: Turn) -> frozenset[str]:
    """The devices that the queue would get now if the neighbours held none. The broker queues with them for these."""
    state = turn.state
    if not state.requests.line or not state.devices.neighbour_holds or state.devices.sample is None:
        return frozenset()
    without = _plan(turn, _job_stops(turn)[0], {})
    return frozenset(uuid for grant in without.grants for uuid in grant.devices)


def _plan(turn: Turn, closed: Mapping[str, Cause], holds: Mapping[str, str]) -> Plan:
    state = turn.state
    return plan(
        state.devices.by_uuid.values(),
        state.requests.leases.values(),
        state.requests.line,
        state.policy,
        turn.now,
        views=state.views(holds),
        usage=state.learned.usage,
        records=state.learned.records,
        sketches=state.learned.sketches,
        peaks=state.learned.peaks,
        closed=closed,
        order=state.requests.custom_order.ranking,
        caps={sweep: cap.most for sweep, cap in state.jobs.caps.items()},
        slots=state.slots,
        known_ends=lambda: _known_ends(state),
        said=turn.planned.said,
    )


def _known_ends(state: State) -> KnownEnds:
    """Leases that go on until their own process, or the run that it belongs to, is granted more; and time limits."""
    stay: set[str] = set()
    for pending in state.requests.pending.values():
        owner = pending.owner
        if owner.pid is not None:
            stay |= state.requests.owned.get((owner.pid, owner.start_time), frozenset())
        stay.add(pending.within or "")
    limits = {
        job.planner_id: job.started + job.spec.time_limit + state.settings.grace
        for job in state.jobs.running.values()
        if job.started is not None and job.spec.time_limit is not None
    }
    return KnownEnds(frozenset(stay), limits)


def _wake(turn: Turn, time: float) -> None:
    """One alarm, the earliest: a plan that is made then sets the next."""
    if time < turn.planned.wake or turn.planned.wake <= turn.now:
        turn.planned.wake = time
        if time < inf:
            turn.alarm(time - turn.now, "plan")


def _job_stops(turn: Turn, always: bool = False) -> tuple[dict[str, Cause], float]:
    """Why no job starts at all, if so; and when to judge that again. Nobody asks while no job waits, but `always`."""
    if not turn.state.jobs.counts.get("waiting") and not always:
        return {}, inf
    if turn.state.settings.paused:
        return {"job": PAUSED}, inf
    delays = {user: one for user, one in turn.state.jobs.delays.items() if one.until > turn.now}
    delayed = {
        of_user("job", user): Cause(f"It could not be started: {one.why}. It is tried again.", "start is tried again")
        for user, one in delays.items()
    }
    halts = {whose: until for whose, until in turn.state.jobs.halts.items() if until > turn.now}
    delayed |= dict.fromkeys(halts, BEING_KILLED)
    again = min((*(one.until for one in delays.values()), *halts.values()), default=inf)
    keep, free = turn.state.settings.keep_memory, turn.world.host_memory().free_part
    if free is not None and free < keep:
        low = f"Host memory is low: {free:.0%} is free, and {keep:.0%} is kept."
        return {"job": Cause(low, f"host memory low ({free:.0%})"), **delayed}, min(
            again, turn.now + MEMORY_CHECK_INTERVAL
        )
    return delayed, again


# -------------------------------------------------------------------- deciding


def decide(turn: Turn) -> None:
    """Grant what can be granted, or have its devices checked. Release checks that no plan needs any more."""
    state, planned = turn.state, turn.planned
    if isinstance(state.devices.check, Checking) or state.devices.sample is None:
        return None
    if planned.decided == state.revision and turn.now < planned.wake and not state.devices.locked:
        return None
    grants = current_plan(turn).grants if state.requests.line else ()
    wanted = frozenset(uuid for grant in grants for uuid in grant.devices)
    if not wanted <= state.devices.verified.keys() and any(not grant.devices for grant in grants):
        for grant in grants:
            if not grant.devices:
                jobs.start(turn, grant)  # no device has to be checked first
        return decide(turn)
    if state.settings.gpuget and not state.devices.seen_since_end(wanted):
        return turn.take_sample()  # it goes back first: others stand in gpuget's line for it
    if not wanted <= state.devices.verified.keys():
        return leases.check(turn, wanted)
    for grant in grants:
        if grant.id in state.requests.pending:
            _grant_request(turn, grant)
        else:
            jobs.start(turn, grant)
    planned.decided = state.revision
    return unlock(turn)


def sample_if_stale(turn: Turn) -> None:
    """Sampling pauses while the line is empty. Take a fresh sample before the first new request is refused."""
    state = turn.state
    if not state.requests.line or state.devices.sample is None or isinstance(state.devices.check, Checking):
        return
    if turn.now - max(state.devices.sampled_at, state.devices.asked_at) >= state.settings.polling:
        turn.take_sample()


def _grant_request(turn: Turn, grant: Grant) -> None:
    """A reservation ends with its time, and a process's lease with the process. Both end at their longest duration."""
    pending = turn.state.requests.pending[grant.id]
    owner, span = pending.owner, pending.waiting.request.duration
    if owner.pid is not None or span is None:
        what = "lease" if owner.pid is not None else "reservation"
        span = longest(allowance(turn.state, owner.user, owner.groups), what)
    lease = lease_of(grant, pending.waiting, owner, turn.now, None if span is None else turn.now + span)
    leases.grant(turn, lease._replace(note=pending.note))


def unlock(turn: Turn) -> None:
    state = turn.state
    if state.devices.locked:
        state.devices.locked = False
        turn.emit(Unlock())
    for uuid in list(state.devices.verified):
        state.devices.verified.drop(uuid)
    if isinstance(state.devices.check, Refused):
        state.devices.check = Idle()


# -------------------------------------------------------------------- the check


def checked(turn: Turn, event: Checked) -> None:
    state = turn.state
    if not isinstance(state.devices.check, Checking):
        return turn.emit(Unlock())  # of a turn that was undone
    if state.devices.check.revision != event.revision:
        return None
    for uuid in event.held:
        state.devices.neighbour_holds.put(uuid, event.held[uuid])  # until the neighbour tells otherwise
    for uuid in state.devices.check.devices - event.held.keys():
        state.devices.verified.put(uuid, None)
        state.devices.set_device(uuid, event.seen.get(uuid, LOST_DEVICE))
    notices.check_lost_devices(turn)
    state.devices.check = Idle()
    return _lock_taken(turn)


def check_refused(turn: Turn, event: CheckRefused) -> None:
    """Try again soon. New clients hear why nothing is granted, unless it is only for a moment."""
    before = turn.state.devices.check
    if not isinstance(before, Checking) or before.revision != event.revision:
        return
    shown_from = turn.now + QUIET_PERIOD if event.temporary else turn.now
    if before.shown_from is not None:
        shown_from = min(shown_from, before.shown_from)
    if event.temporary:
        _lock_held(turn, event)
    stop_check(turn)
    turn.state.devices.check = Refused(event.why, shown_from)
    turn.planned.decided = turn.state.revision
    turn.alarm(FRESH_FOR if not event.temporary else FIRST_RETRY if turn.now < shown_from else RETRY, "plan")


def stop_check(turn: Turn) -> None:
    """The check could not be made. It may be one that an undone turn asked for, so release the lock in any case."""
    state = turn.state
    if isinstance(state.devices.check, Checking):
        state.devices.check = Idle()
    state.devices.locked = True
    unlock(turn)


def _lock_held(turn: Turn, event: CheckRefused) -> None:
    """Somebody holds safe-gpu's lock while others want a device. Any user of the host can, so there is an end to it.

    The time is counted by user, since one process may follow another. Each may take `safe-gpu-patience` of the queue's
    time between two checks. Then that user is not waited for during an hour, and is named in the events and in the
    status. While somebody holds the lock no other user of safe-gpu chooses, so that a grant without it can only collide
    with the holder's choice.
    """
    state, patience = turn.state, turn.state.settings.safe_gpu_patience
    before = state.devices.blockers.get(event.user, Blocker(turn.now))
    since = turn.now - before.seen
    spent = before.spent + since if since <= GAP else max(0.0, before.spent - since * FORGIVEN)
    if spent < patience:
        return state.devices.blockers.put(event.user, Blocker(turn.now, spent))
    why = f"kept safe-gpu's lock for {patience:g} s, and is not waited for during the next hour"
    state.record(turn.now, "passed-by", user=event.user, pid=event.pid, devices=[], why=why)
    return state.devices.blockers.put(event.user, Blocker(turn.now, ignored_since=turn.now))


def _lock_taken(turn: Turn) -> None:
    """A check was taken, so the holder let go in time, unless somebody is ignored."""
    blockers = turn.state.devices.blockers
    if blockers and not turn.state.devices.ignored_users(turn.now):
        for user in list(blockers):
            blockers.drop(user)
