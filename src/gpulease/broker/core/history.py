"""The history, as the core sees it: what it reports of leases, jobs and samples, and who may ask for what.

The edge adds up and keeps (broker/edge/history.py). Nothing here is written by the core's own commit: reports sent
after it may be lost with the broker, a minute of it.
"""

from __future__ import annotations

from typing import Any

from gpulease.broker.core.events import Received
from gpulease.broker.core.instructions import AnswerHistory, Continue, JobEnded, LeaseStarted
from gpulease.broker.core.turn import Turn
from gpulease.errors import UsageError
from gpulease.model.job_selection import job_number
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.spans import DAY, Asked, DeviceName, asked
from gpulease.model.values import Lease
from gpulease.protocol.messages import PlainRequest, SpanRequest

SAMPLE_INTERVAL = 10.0  # seconds between looks at the devices while one is held and nobody else wants to know


def lease_started(turn: Turn, lease: Lease, waited: float, label: str | None = None) -> None:
    turn.emit(LeaseStarted(turn.now, lease, _places(turn, lease), label, waited))
    _schedule_sample(turn)


def leases_found(turn: Turn) -> None:
    """Leases of a former broker, in the order in which they began. What a reboot ended was not held through it."""
    state = turn.state
    for lease in sorted(state.requests.leases.values(), key=lambda one: one.since):
        job = state.jobs.running.get(job_number(lease.id))
        label = None if job is None else job.spec.label
        since = lease.since if lease.owner.boot_id == state.about.boot_id else turn.now
        turn.emit(LeaseStarted(turn.now, lease, _places(turn, lease), label, since=since))
    _schedule_sample(turn)


def job_ended(turn: Turn, job: Job) -> None:
    how = "out_of_memory" if job.out_of_memory else job.state
    turn.emit(JobEnded(turn.now, job.user, turn.world.groups_of(job.uid), job.spec.label, job.devices, how))


def _places(turn: Turn, lease: Lease) -> tuple[DeviceName, ...]:
    state = turn.state
    names = (state.devices.by_uuid[uuid].name if uuid in state.devices.by_uuid else "" for uuid in lease.devices)
    return tuple(map(DeviceName, lease.devices, state.devices.labels(lease.devices), names))


# -------------------------------------------------------------------- samples


def sample_held_devices(turn: Turn) -> None:
    """The devices are seen now and then while one is held, and more often where somebody wants to know."""
    turn.state.learned.held_sample_due = False
    if turn.state.requests.leases and turn.now - turn.state.devices.sampled_at >= SAMPLE_INTERVAL * 0.9:
        turn.take_sample()
    _schedule_sample(turn)


def _schedule_sample(turn: Turn) -> None:
    if turn.state.requests.leases and not turn.state.learned.held_sample_due:
        turn.state.learned.held_sample_due = True
        turn.alarm(SAMPLE_INTERVAL, "held")


# -------------------------------------------------------------------- questions


def history(turn: Turn, event: Received[SpanRequest]) -> None:
    _answer(turn, event, _question(turn, event.message, 60.0), None)


def usage(turn: Turn, event: Received[SpanRequest]) -> None:
    _answer(turn, event, _question(turn, event.message, 3600.0), _whose(turn, event.peer))


def totals(turn: Turn, event: Received[PlainRequest]) -> None:
    _answer(turn, event, None, _whose(turn, event.peer))


def _answer(turn: Turn, event: Received[Any], question: Asked | None, user: str | None) -> None:
    """The file is read after the commit, once for each user in a turn: others wait for that."""
    if event.peer.uid in turn.readers:
        return turn.emit(Continue(event))
    turn.readers.add(event.peer.uid)
    return turn.emit(AnswerHistory(event.peer, event.message["do"], turn.now, question, user))


def _whose(turn: Turn, peer: Peer) -> str | None:
    """Of all users (None) for who keeps the broker, and for everybody where `usage-shown` says so."""
    everybody = turn.state.manages(peer.uid) or turn.state.settings.usage_shown == "all"
    return None if everybody else peer.user


def _question(turn: Turn, message: SpanRequest, usual: float) -> Asked:
    since, until, step = message.get("since"), message.get("until"), message.get("step")
    until = turn.now if until is None else until
    since = until - DAY if since is None else since
    if since > until:
        raise UsageError("The time span ends before it begins.", "Give an end that is later than the beginning.")
    return asked(since, until, usual if step is None else step, turn.now)
