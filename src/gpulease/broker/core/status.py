"""What the broker shows: the status document, its rows, and the explanation of one request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from gpulease.broker.core import learned, requests
from gpulease.broker.core.devices import colliding
from gpulease.broker.core.events import Received
from gpulease.broker.core.grants import current_plan, fresh_plan
from gpulease.broker.core.limits import allowance, check_request, impossible
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import NOTHING
from gpulease.errors import NotFound, UsageError
from gpulease.model.device_selection import resolve
from gpulease.model.job_selection import job_number, line_id
from gpulease.model.request import read_request
from gpulease.model.store import Document
from gpulease.model.values import Device, Lease, Process, Waiting
from gpulease.planner import DeviceState, DeviceView, Plan, Verdict, device_state
from gpulease.planner.device_states import held
from gpulease.planner.forecast import NO_FORECAST, Start
from gpulease.protocol.messages import KINDS, ExplainRequest
from gpulease.render.hidden import of_device, of_lease
from gpulease.render.status import PLACEHOLDER

WORDS, LETTERS = 40, 200  # of a command that one status shows
MAX_LINES = 1000  # of the line that one status shows


def status(turn: Turn, seen_by: str | None = None) -> Document:
    """The contract's document, but for `line`. Without a sample it says what is wrong instead of devices."""
    state = turn.state
    memory = turn.world.host_memory()
    return {
        "host": state.about.host,
        "host_memory_total": memory.total,
        "host_memory_available": memory.available,
        "simulated": simulated(state),
        "driver": state.devices.sample.driver if state.devices.sample else None,
        "time": state.devices.sampled_at,
        "sample_age": turn.now - state.devices.sampled_at if state.devices.sample else None,
        "trouble": None if state.devices.trouble is None else str(state.devices.trouble),
        "broker": state.describe(turn.now),
        "devices": list(device_rows(turn, seen_by).values()),
        "leases": list(lease_rows(turn, seen_by).values()),
        "line_length": len(state.requests.line),
        "neighbours": dict(state.devices.neighbours_shown),
        "passed_by": sorted(user or "somebody" for user in state.devices.ignored_users(turn.now)),
    }


def simulated(state: State) -> bool:
    return state.about.simulated if state.devices.sample is None else state.devices.sample.simulated


def device_rows(turn: Turn, seen_by: str | None = None) -> dict[str, Document]:
    state = turn.state
    seen = state.views()
    rows = {uuid: _device_row(state, device, seen[uuid]) for uuid, device in state.devices.by_uuid.items()}
    return {uuid: of_device(row, seen_by) for uuid, row in rows.items()}


def _device_row(state: State, device: Device, view: DeviceView) -> Document:
    on = [lease for lease in state.requests.leases.values() if device.uuid in lease.devices]
    judged = device_state(device, on, view, state.policy)
    also = f"{held(judged.neighbour or '')} too" if colliding(state, judged, on) else None
    fields = device._asdict()
    processes = fields.pop("processes")
    return {
        **fields,
        "label": device.label,
        "state": leased_state(judged, on),
        "outside": list(judged.pids) if judged.state == "outside" else [],
        "note": judged.note or also,
        "holder": state.devices.neighbours_shown.get("gpulease", NOTHING).get("holders", NOTHING).get(device.uuid),
        "leases": [lease.id for lease in on],
        "processes": None if processes is None else [_process_row(state, process, on, view) for process in processes],
    }


def _process_row(state: State, process: Process, on: list[Lease], view: DeviceView) -> Document:
    if process.pid in view.placeholders:
        process = process._replace(command=PLACEHOLDER)
    return process.shown(_lease_of(state, process.user, process.pid, on, view))


def leased_state(judged: DeviceState, on: list[Lease]) -> str:
    """A leased device with a stranger on it is still leased; the stranger is shown beside."""
    if judged.state == "outside" and on:
        return "shared" if all(lease.memory is not None for lease in on) else "leased"
    return judged.state


def _lease_of(state: State, user: str | None, pid: int, on: list[Lease], view: DeviceView) -> str | None:
    if pid not in view.explained:
        return None
    mine = [lease for lease in on if lease.owner.user == user]
    exact = [lease for lease in mine if _pid(state, lease) == pid]
    return (exact or mine)[0].id


def _pid(state: State, lease: Lease) -> int | None:
    """Of its owner; a job's is that of its shell."""
    return state.jobs.shell(job_number(lease.id))[0] if lease.kind == "job" else lease.owner.pid


def lease_rows(turn: Turn, seen_by: str | None = None) -> dict[str, Document]:
    return {id: of_lease(lease_row(turn.state, lease), seen_by) for id, lease in turn.state.requests.leases.items()}


def lease_row(state: State, lease: Lease) -> Document:
    job = state.jobs.running.get(job_number(lease.id))
    return {
        "id": lease.id,
        "kind": lease.kind,
        "devices": list(lease.devices),
        "labels": state.devices.labels(lease.devices),
        "user": lease.owner.user,
        "pid": _pid(state, lease),
        "asked_by": lease.owner.asked_by and lease.owner.asked_by[0],
        "since": lease.since,
        "until": lease.until,
        "memory": lease.memory,
        "priority": lease.priority,
        "note": lease.note,
        "ending": None if job is None else job.ending,
        "job": None if job is None else job.spec.name or " ".join(job.spec.command[:WORDS])[:LETTERS],
    }


def line_rows(turn: Turn, seen_by: str | None = None) -> dict[str, Document]:
    ids = [entry.id for entry in turn.state.requests.line.front(MAX_LINES)]
    return {id: row for id in ids if (row := line_row(turn, id, seen_by)) is not None}


def order_rows(turn: Turn, seen_by: str | None = None) -> dict[str, Document]:
    """The order of the rows of the queue, and how many wait in total: rows alone do not say."""
    line = turn.state.requests.line
    return {"line": {"ids": [entry.id for entry in line.front(MAX_LINES)], "length": len(line)}}


def line_row(turn: Turn, id: str, seen_by: str | None = None) -> Document | None:
    """None for one that waits no more."""
    entry = turn.state.requests.line.get(id)
    if entry is None:
        return None
    pending, reason = turn.state.requests.pending.get(entry.id), requests.reason(turn, entry.id)
    row = {
        "id": entry.id,
        "kind": entry.kind,
        "user": entry.user,
        "pid": None if pending is None else pending.owner.pid,
        "gpus": entry.request.gpus,
        "memory": entry.request.memory,
        "priority": entry.request.priority,
        "since": entry.since,
        "code": reason.code,
        "why": reason.sentence,
        "why_short": reason.short,
        **reason.moments,
        "note": None if pending is None else pending.note,
    }
    return of_lease(row, seen_by)


def _ending(state: State, verdict: Verdict) -> str:
    """A note on jobs there that were asked to end and have not ended yet."""
    ids = verdict.fields["leases"] if verdict.code == "leased" and "leases" in verdict.fields else ()
    names = [str(id) for id in ids] if isinstance(ids, tuple) else []
    ending = [job.planner_id for job in state.jobs.running.values() if job.ending and job.planner_id in names]
    return f" {', '.join(ending)} {'is' if len(ending) == 1 else 'are'} ending." if ending else ""


def verdict_rows(state: State, verdicts: Iterable[Verdict]) -> list[Document]:
    return [
        {"label": v.label, "uuid": v.device, "code": v.code, "why": f"{v.sentence}{_ending(state, v)}"}
        for v in verdicts
    ]


def explain(turn: Turn, id: str, seen_by: str | None = None) -> Document:
    state = turn.state
    if (lease := state.requests.leases.get(id)) is not None:
        return {"id": id, "lease": of_lease(lease_row(state, lease), seen_by), "why": None, "devices": []}
    if id.isdecimal():
        id = line_id(id)
    if id not in state.requests.line:
        raise NotFound(f"There is no request {id[:40]!r}.", "Run `gpulease status` to see the queue.")
    reason = requests.reason(turn, id)
    decided = current_plan(turn)
    fits = any(grant.id == id for grant in decided.grants)  # and is being checked, or the driver does not answer
    verdicts = () if fits else decided.explain(id)
    rows = verdict_rows(state, verdicts)
    place = requests.place(turn, id)
    why = {"code": reason.code, "why": reason.sentence, "why_short": reason.short, **reason.moments}
    return {"id": id, "lease": None, "place": place, **why, "devices": rows}


# -------------------------------------------------------------------- a request that nobody has made


MAX_ESTIMATED = 64  # alike that are foreseen at once; the planner looks no further ahead
NOW = "It would start now."


def estimate_starts(turn: Turn, event: Received[ExplainRequest]) -> Document:
    """Of so many alike: in how many seconds each would start, None being nobody knows; of the first also why not now.

    Seconds, and no moments: hosts are compared by them, and their clocks differ.
    """
    state, peer = turn.state, event.peer
    message = event.message
    kind, asked = message.get("kind") or "run", message.get("count")
    count = 1 if asked is None else asked
    if kind not in (*KINDS, "job"):
        raise UsageError(f"There is no kind of lease {kind[:40]!r}.")
    if not 1 <= count <= MAX_ESTIMATED:
        raise UsageError(f"{count} requests were asked about.", f"Ask about 1 to {MAX_ESTIMATED}.")
    if state.devices.sample is None and state.devices.trouble is not None:
        raise state.devices.trouble
    wanted = read_request(message.get("request") or {}, 0)._replace(not_before=None)
    request = resolve(wanted, list(state.devices.by_uuid.values()))
    check_request(allowance(state, peer.user, peer.groups), request)
    since = state.requests.since(turn.now)
    expected = learned.expected(turn, peer.user, request)
    one = Waiting("?0", request, peer.user, peer.uid, since, peer.groups, kind, expected=expected)
    copies = [one._replace(id=f"?{number}", since=since + number * 1e-6) for number in range(count)]
    never = impossible(turn, copies[0]._replace(id="probe", since=0.0))
    with _in_line(turn, copies) as decided:
        granted = {grant.id for grant in decided.grants}
        starts = [0.0 if one.id in granted else _from_now(turn, decided.expected_start(one.id)) for one in copies]
        estimate = _first_estimate(turn, decided, copies[0].id, copies[0].id in granted)
    return {
        **estimate,
        "possible": never is None,
        "starts": [] if never else starts,
        "load": _load(turn),
        "gpus": len(state.devices.by_uuid),
    }


@contextmanager
def _in_line(turn: Turn, copies: list[Waiting]) -> Iterator[Plan]:
    """The plan as if they waited, as long as it is asked. The state's revision stays: nobody else sees them."""
    line = turn.state.requests.line
    added = []
    try:
        for one in copies:
            line.add(one)
            added.append(one.id)
        yield fresh_plan(turn)
    finally:
        for id in added:
            line.remove(id)


def _first_estimate(turn: Turn, decided: Plan, id: str, fits: bool) -> Document:
    base: Document = {"id": "", "lease": None, "place": 1 + turn.state.requests.line.ahead(id)}
    if fits:
        why = {"code": "fits", "why": NOW, "why_short": "", **NO_FORECAST.moments, "expected_start": turn.now}
        return {**base, **why, "devices": []}
    reason = decided.reason(id)
    why = {"code": reason.code, "why": reason.sentence, "why_short": reason.short}
    rows = verdict_rows(turn.state, decided.explain(id))
    return {**base, **why, **decided.forecast(id)[0].moments, "devices": rows}


def _from_now(turn: Turn, start: Start | None) -> float | None:
    return None if start is None else max(0.0, start.likely - turn.now)


def _load(turn: Turn) -> float:
    """GPUs that are held or waited for, by the GPUs that are here; of two hosts the lesser one is taken."""
    state = turn.state
    held = sum(len(lease.devices) for lease in state.requests.leases.values())
    wanted = sum(
        count * (1 if family.share else tier.least[family])
        for tier in state.requests.line.tiers.values()
        for family, count in tier.counts.items()
    )
    return round((held + wanted) / max(1, len(state.devices.by_uuid)), 3)
