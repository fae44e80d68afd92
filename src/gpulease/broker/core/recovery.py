"""Finding everything again as it was when the last broker ended, however it ended."""

from __future__ import annotations

from collections.abc import Iterator

from gpulease.broker.core import devices, history, jobs, learned, leases, limits, neighbours, notices, packing, runs
from gpulease.broker.core.instructions import WriteLog
from gpulease.broker.core.leases import UNCLAIMED, watch
from gpulease.broker.core.state import LEARNT
from gpulease.broker.core.state.requests import read_lease, read_pending
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import BatchRange, Cap, NoticeChoice
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import line_id
from gpulease.model.request import stored_request
from gpulease.model.store import Document, Which
from gpulease.model.values import Request, Waiting
from gpulease.planner import Peak, Spent
from gpulease.planner.lengths import Sketch

FIRST_PRUNING = 10.0  # seconds, in which what waits for the broker is served
CHUNK = 5000  # jobs that are read from the store at a time


def load(turn: Turn) -> None:
    _load_facts(turn)
    _load_leases(turn)
    _load_line(turn)
    _load_jobs(turn)
    history.leases_found(turn)
    turn.alarm(FIRST_PRUNING, "prune")
    turn.alarm(FIRST_PRUNING, "forget-environments")
    if turn.state.requests.line:
        turn.take_sample()


def _load_facts(turn: Turn) -> None:
    state, store = turn.state, turn.state.store
    facts = store.load("facts")
    number = max(0, facts.get("number", {}).get("value", 0))
    state.requests.number = number
    state.requests.numbers_kept = number
    usage, records = (facts.get(name, {}) for name in ("usage", "records"))
    state.learned.charge(*({user: Spent(*spent) for user, spent in one.items()} for one in (usage, records)))
    state.learned.peaks.fill({shape: Peak(*peak) for shape, peak in facts.get("peaks", {}).items()})
    learnt = {name.removeprefix(LEARNT): row["sketch"] for name, row in facts.items() if name.startswith(LEARNT)}
    state.learned.sketches.fill({name: Sketch.read(row) for name, row in learnt.items()})
    state.jobs.environments.fill({int(uid): size for uid, size in facts.get("environments", {}).items()})
    state.jobs.caps.fill({int(sweep): Cap(*cap) for sweep, cap in facts.get("caps", {}).items()})
    chosen = facts.get("notices", {}).items()
    state.chosen.fill({int(uid): NoticeChoice(file, tuple(events)) for uid, (file, events) in chosen})
    neighbours.load(turn, facts.get("neighbours", {}))
    devices.load_known(state, facts.get("devices", {}))
    state.devices.excluded.fill({uuid: document["note"] for uuid, document in store.load("excluded").items()})
    state.texts.fill({name: document["text"] for name, document in store.load("settings").items()})
    for complaint in (*state.use_settings(), *limits.unknown_names(turn)):
        turn.emit(WriteLog(complaint))


def _load_leases(turn: Turn) -> None:
    state = turn.state
    for document in state.store.load("leases").values():
        lease, claimed = read_lease(document)
        state.devices.old_labels.update(zip(lease.devices, document.get("labels") or (), strict=False))
        state.requests.hold(lease, claimed, document.get("token"))
        watch(turn, lease.owner)
        packing.recall(turn, lease)
        if lease.until is not None:
            turn.alarm(lease.until - turn.now, "until", lease.id)
            notices.set_alarm(turn, lease)
        if not claimed:
            turn.alarm(UNCLAIMED, "unclaimed", lease.id)
    for lease in list(state.requests.leases.values()):
        if lease.kind != "job" and lease.owner.pid is not None and lease.owner.boot_id != state.about.boot_id:
            leases.end(turn, lease, "the machine was restarted", cut=True)


def _load_line(turn: Turn) -> None:
    state = turn.state
    for document in state.store.load("line").values():
        pending = read_pending(document)
        if pending.owner.pid is not None and pending.owner.boot_id != state.about.boot_id:
            state.store.write("line", pending.id, None)
            continue
        state.requests.enter(pending, written=True)
        watch(turn, pending.owner)
        if pending.deadline is not None:
            turn.alarm(pending.deadline - turn.now, "deadline", pending.id)
        turn.alarm(UNCLAIMED, "unclaimed", pending.id)
    leases.schedule_sample(turn)


def _load_jobs(turn: Turn) -> None:
    state = turn.state
    for (uid, name), number in state.store.count_jobs().items():
        state.jobs.count(uid, None, name, number)
    last = state.store.jobs(most=1, newest=True)
    known = state.store.get("facts", "job") or {}
    state.jobs.number = max(last[0]["id"] if last else 0, known.get("value", 0))
    state.jobs.batches.fill({token: BatchRange(*ids) for token, ids in known.get("batches", {}).items()})
    running = list(map(model_jobs.read, _stored(turn, model_jobs.RUNNING)))
    for job in running:
        state.jobs.change(job, job)
    _join_waiting(turn)
    for job in running:
        runs.recover(turn, job)


def _join_waiting(turn: Turn) -> None:
    """Into the queue. Most have no more about them than a request that many others have too."""
    plain: list[Waiting] = []
    requests: dict[str, Request] = {}
    for stored in _stored(turn, ("waiting",)):
        if "after" in stored or "not_before" in stored["request"]:
            jobs.join(turn, model_jobs.read(stored))
        else:
            plain.append(_plain(turn, stored, requests))
    turn.state.requests.fill_line(plain)
    leases.schedule_sample(turn)


def _plain(turn: Turn, stored: Document, requests: dict[str, Request]) -> Waiting:
    asked = repr(stored["request"])
    request = requests.get(asked)
    if request is None:
        request = requests[asked] = stored_request(stored["request"])
    groups, place, forced = turn.world.groups_of(stored["uid"]), stored.get("place"), stored.get("forced", False)
    shape = learned.shape(turn, stored["user"], stored["command"], stored["cwd"], request)
    return Waiting(
        line_id(stored["id"]), request, stored["user"], stored["uid"], stored["added"], groups, "job", place, None,
        forced, shape, stored.get("cap"), packing.may_share(turn, request, shape),
        learned.expected(turn, stored["user"], request),
    )  # fmt: skip


def _stored(turn: Turn, states: tuple[str, ...]) -> Iterator[Document]:
    """Jobs from the store, a chunk at a time: there may be a hundred thousand."""
    first = 0
    while True:
        found = turn.state.store.jobs(Which(states, ids=[(first, 1 << 62)]), CHUNK)
        yield from found
        if len(found) < CHUNK:
            return
        first = found[-1]["id"] + 1
