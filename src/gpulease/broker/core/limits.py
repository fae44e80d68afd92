"""What a user may ask for: by the limits of the policy, and by what this machine could ever grant."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.errors import BrokerUnavailable, GpuleaseError, NotEnoughDevices, NotPermitted, TooMuch
from gpulease.model.device_selection import resolve
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.quantities import span_text
from gpulease.model.request import read_request
from gpulease.model.values import Lease, Request, Waiting
from gpulease.planner import Limit, Line, limits_of, plan
from gpulease.planner.policy import UNLIMITED
from gpulease.planner.reasons import NEVER, OVER_LIMIT, Reason
from gpulease.protocol.messages import Fields


def allowance(state: State, user: str, groups: Sequence[str]) -> Limit:
    """What holds for one user, the parameter `log-limit` included."""
    found = limits_of(state.policy.limits, user, groups)
    return found if found.log_limit is not None else found._replace(log_limit=state.settings.log_limit)


def log_limit_of(state: State, job: Job, groups: Sequence[str]) -> int | None:
    """Most bytes of a job's log; None for no limit."""
    named = limits_of(state.policy.limits, job.user, groups, ("log_limit",)).log_limit if state.policy.limits else None
    most = state.settings.log_limit if named is None else named
    return None if most is None or most >= UNLIMITED else most


def refused(reason: Reason, next_step: str) -> GpuleaseError:
    """The error for a request that can never be granted."""
    if reason.code == OVER_LIMIT:
        return NotPermitted(reason.sentence, "Ask for less; the broker's administrator can change the limit.")
    return NotEnoughDevices(reason.sentence, next_step)


def check_request(limit: Limit, request: Request) -> None:
    """Its priority, and the time that it declares."""
    low, high = limit.priorities or (request.priority, request.priority)
    if not low <= request.priority <= high:
        raise NotPermitted(
            f"User {limit.name} may ask for priority {low} to {high}, not {request.priority}.",
            f"Ask with priority {max(low, min(high, request.priority))}.",
        )
    _check_time(limit, request.duration, "lease")


def check_reservation(limit: Limit, duration: float | None) -> None:
    _check_time(limit, duration, "reservation")


def check_renewal(limit: Limit, lease: Lease) -> None:
    """From its first moment to its new end."""
    assert lease.until is not None
    _check_time(limit, lease.until - lease.since, "reservation" if lease.owner.pid is None else "lease")


def _check_time(limit: Limit, seconds: float | None, what: str) -> None:
    longest = _longest(limit, what)
    if seconds is not None and seconds > longest:
        raise NotPermitted(
            f"The longest {what} of user {limit.name} is {span_text(longest)}, and {span_text(seconds)} are asked for.",
            "Ask for less time.",
        )


def _longest(limit: Limit, what: str) -> float:
    """A reservation is a lease too."""
    lease = inf if limit.longest_lease is None else limit.longest_lease
    if what == "lease" or limit.longest_reservation is None:
        return lease
    return min(lease, limit.longest_reservation)


def longest(limit: Limit, what: str) -> float | None:
    """How long a `lease` of a process, or a `reservation`, may last."""
    seconds = _longest(limit, what)
    return None if seconds == inf else seconds


def time_limit(limit: Limit, given: float | None) -> float | None:
    """Of a job: what was given, if that is allowed; else the default."""
    _check_time(limit, given, "lease")
    if given is not None:
        return given
    default = min(inf if limit.time_limit is None else limit.time_limit, _longest(limit, "lease"))
    return None if default == inf else default


def check_jobs(limit: Limit, there: int, more: int) -> None:
    if limit.jobs is not None and there + more > limit.jobs:
        raise TooMuch(
            f"User {limit.name} may have {limit.jobs} unfinished jobs; it has {there}, and asks for {more} more.",
            "Queue fewer." if more > limit.jobs else "Let some of them end first.",
        )


def request_of(turn: Turn, user: Peer | Job, fields: Fields, hold: bool) -> Request:
    request = resolve(read_request(fields, 0), list(turn.state.devices.by_uuid.values()))
    if not request.gpus and not turn.state.slots:
        raise NotPermitted("Jobs without a GPU are not run here: cpu-jobs is 0.", "Ask the broker's administrator.")
    groups = turn.world.groups_of(user.uid)
    check_request(allowance(turn.state, user.user, groups), request)
    probe = Waiting("probe", request._replace(not_before=None), user.user, user.uid, 0.0, groups, "job")
    reason = None if hold else impossible(turn, probe)
    if reason is not None:
        raise refused(reason, "Ask for less, or queue it held: `--hold`, in Python `hold=True`.")
    return request


def impossible(turn: Turn, probe: Waiting) -> Reason | None:
    """Why a request can never be granted here; None when it can."""
    if turn.state.devices.sample is None:
        return None
    key = (probe, turn.state.policy)
    if key not in turn.possible:
        turn.possible[key] = _impossible(turn, probe)
    return turn.possible[key]


def _impossible(turn: Turn, probe: Waiting) -> Reason | None:
    line = Line(turn.state.policy)
    line.add(probe)
    decided = plan(turn.state.devices.by_uuid.values(), (), line, turn.state.policy, turn.now)
    if decided.grants:
        return None
    reason = decided.reason(probe.id)
    return reason if reason.code in NEVER else None


# -------------------------------------------------------------------- limits of nobody


def unknown_names(turn: Turn) -> list[str]:
    """A sentence for each of them."""
    unknown = [_unknown(turn, limit) for limit in turn.state.policy.limits]
    return [f"There is no {who} here now, of whom the limits speak." for who in unknown if who is not None]


def _unknown(turn: Turn, limit: Limit) -> str | None:
    if limit.scope == "priority" or limit.name == "*":
        return None
    try:
        if limit.scope == "user" and not limit.name.startswith("@"):
            return None if turn.world.uid_of(limit.name) is not None else f"user {limit.name[:40]!r}"
        group = limit.name.removeprefix("@") if limit.scope == "user" else limit.name
        return None if turn.world.has_group(group) else f"group {group[:40]!r}"
    except BrokerUnavailable:
        return None  # nobody knows
