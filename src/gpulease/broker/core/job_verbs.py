"""What each request about jobs does. One function a verb; each acts on one's own jobs, root's on those it names."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from gpulease.broker.core import bulk, caps, jobs, learned, packing, requests, runs, status, transfer
from gpulease.broker.core.add import add, check_numbers, edited, renew_environment
from gpulease.broker.core.events import BulkProgress, Listing, Received
from gpulease.broker.core.instructions import Continue
from gpulease.broker.core.limit_names import unknown_names
from gpulease.broker.core.limits import impossible, refused
from gpulease.broker.core.order import trouble_of
from gpulease.broker.core.turn import Turn
from gpulease.errors import NotPermitted, TooMuch, UsageError, WrongState
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import job_number, line_id
from gpulease.model.jobs import Job
from gpulease.model.peer import Peer
from gpulease.model.store import Document, Which
from gpulease.model.values import Waiting
from gpulease.planner import of_user, settings
from gpulease.planner.forecast import NO_FORECAST
from gpulease.protocol.messages import (
    Done,
    EditRequest,
    Ids,
    KillRequest,
    ListRequest,
    MoveRequest,
    PauseRequest,
    QueuePaused,
    RetryRequest,
    SetRequest,
    ShowRequest,
)  # fmt: skip
from gpulease.protocol.wire import listed, to_text
from gpulease.render.hidden import of_job, viewer
from gpulease.render.jobs import left_text

SHOWN = 50
SHOWN_ENDED = 10
MAX_SHOWN = 5000  # of one answer, which must fit a message
MAX_LISTED = 1000  # of each kind, where no jobs were named
MAX_BYTES = 4 << 20  # characters of commands in one answer
WAITING = ("waiting", "held")
RUNNING = ("running", "paused")
STARTABLE = (*WAITING, "failed", "killed", "lost")
UNDONE = tuple(end for end in model_jobs.ENDS if end != "complete")
STARTED = ("resumed", "started", "run again")  # what is not done by hand to a copy that is being moved here
ENDED = ("killed", "removed")
HALT = 5.0  # seconds without another piece, after which jobs start again
AGAIN = ("started", "run again")  # what is done to jobs by verbs that run ended ones
FORGOTTEN = "over, and its variables were forgotten"

# ---------------------------------------------------------------------- many of them


def _each(turn: Turn, event: Received, states: tuple[str, ...], act: Callable[[Job], object], wrong: str) -> None:
    _all(turn, event, states, lambda fitting: list(map(act, fitting)), wrong)


def _all(turn: Turn, event: Received, states: tuple[str, ...], act: Callable[[list[Job]], object], wrong: str) -> None:
    """Do `act` to the chosen jobs that are in one of `states`, a piece at a time; if none is, say in which they are."""
    if event.message.get("select") is None:
        raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, a label or a state.")
    chosen = bulk.choice(turn, event)
    piece = bulk.take(turn, event, chosen)
    fitting: dict[int, Job] = {}
    skipped: list[str] = []
    for job in piece.jobs:
        failed = _why_not_again(turn, job, fitting, event) if job.over and wrong in AGAIN else None
        failed = (transfer.in_move(job) if wrong in STARTED else None) or failed
        if job.state not in states or failed is not None:
            skipped.append(f"{job.id} is {job.state if job.state not in states else failed}")
        else:
            fitting[job.id] = job
    act(list(fitting.values()))
    progress = bulk.continue_later(turn, event, piece, list(fitting), skipped)
    if wrong in ENDED:
        _halt_starts(turn, event, chosen, progress is None)
    if progress is not None:
        _answer(turn, event, chosen, progress, wrong)


def _halt_starts(turn: Turn, event: Received, chosen: bulk.Chosen, goes_on: bool) -> None:
    """What is to be killed does not start before its piece is reached."""
    uid, peer = chosen.which.uid, event.peer
    user = peer.user if uid == peer.uid else event.message["select"].get("user")
    whose = "job" if uid is None else of_user("job", user)
    if goes_on:
        turn.state.jobs.halts.put(whose, turn.now + HALT)
    elif event.progress is not None:
        turn.state.jobs.halts.drop(whose)


def _why_not_again(turn: Turn, job: Job, again: Container[int], event: Received) -> str | None:
    """Why one that is over cannot run again: its variables were forgotten and no others are given, or it comes after
    one that did not end well, and is not run again before."""
    renewed = event.message.get("options") is not None and job.uid == event.peer.uid
    if not renewed and not turn.state.jobs.has_environment(job):
        return FORGOTTEN
    if job.spec.after_any:
        return None
    ends = ((id, end) for id, end in turn.state.jobs.states(job.spec.after).items() if id not in again)
    return next((f"to come after {end} job {id}" for id, end in ends if end in UNDONE), None)


def _answer(turn: Turn, event: Received, chosen: bulk.Chosen, progress: BulkProgress, wrong: str) -> None:
    """What was done, and what was named and left as it is: jobs in another state, and ids that are nobody's."""
    if bulk.is_nothing(turn, progress, chosen):
        return turn.reply(event.peer, Done(ids=[], skipped=[], ending=[]))
    bulk.refuse_nothing(turn, progress, chosen)
    done = bulk.gathered(progress)
    named = bool(chosen.ranges or chosen.last)
    if not done and (named or wrong != "killed"):  # that none of a label runs any more is what a kill is for
        raise _unfit(progress.skipped, wrong)
    missing = [f"{id} is not there, or not yours" for id in progress.missing]
    skipped = [*progress.skipped, *missing]
    ending = [id for id in done if (job := turn.state.jobs.running.get(id)) is not None and job.ending is not None]
    turn.reply(event.peer, Done(ids=done, skipped=skipped, ending=ending))


def _unfit(skipped: Sequence[str], wrong: str) -> WrongState:
    """None of them is in a state in which it can be done: with the states of all."""
    step = None
    if any(text.endswith(FORGOTTEN) for text in skipped):
        step = "Its user gives it those of this shell with `gpulease retry --new-env ID`. See `keep-env-for`."
    elif any(" is to come after " in text for text in skipped):
        step = "Retry what they come after too, in the same call or before."
    elif any(text.endswith(transfer.IN_MOVE) for text in skipped):
        step = transfer.FINISH
    elif wrong == "edited" and any(text.rpartition(" ")[2] in model_jobs.ENDS for text in skipped):
        step = "What has ended is changed as it is queued again: `gpulease retry ID --min-memory 40G`."
    elif wrong == "run again" and any(text.endswith("complete") for text in skipped):
        step = "Complete ones are run again by their ids, or by `gpulease retry --state complete`."
    if len(skipped) == 1:
        return WrongState(f"Job {skipped[0]}, so it cannot be {wrong}.", step)
    return WrongState(f"None of these jobs can be {wrong}: {left_text(skipped)}.", step)


# ---------------------------------------------------------------------- looking


def row(turn: Turn, job: Job, peer: Peer) -> dict[str, Any]:
    fields = {name: value for name, value in model_jobs.document(job).items() if name in jobs.SHOWN}
    if job.state in WAITING:
        fields["devices"] = []  # one that waits again has none, and had those of its last run
    fields["runs"] = job.run - (job.state in model_jobs.RUNNING and job.pid is None)  # its log is not made yet
    fields["changed"] = transfer.changed_at(job)
    fields["at_most"] = caps.limit_of(turn.state, job)
    waits = job.state == "waiting" and job.planner_id in turn.state.requests.line
    reason = requests.reason(turn, job.planner_id) if waits else None
    fields["packed"] = packing.describe(turn, job)
    fields["why_waiting"] = None if reason is None else reason.sentence
    fields["why_short"] = None if reason is None else reason.short
    fields |= NO_FORECAST.moments if reason is None else reason.moments
    return of_job(fields, viewer(turn.state.settings, peer))


def ls(turn: Turn, event: Received) -> None:
    message: ListRequest = event.message
    if message.get("ids"):
        return _ids(turn, event)
    if message.get("select"):
        return _rows(turn, event, bulk.choice(turn, event, look=True), _most(message), True, **_counts(turn))
    listing = event.progress
    if not isinstance(listing, Listing):
        most = min(_most(message), MAX_LISTED)
        listing = Listing(_shown(turn, most, bool(message.get("all"))), {"most": most, **_counts(turn)})
    return bulk.show(turn, event, "jobs", listing, lambda id: _listed(turn, id, event.peer))


def _listed(turn: Turn, id: int, peer: Peer) -> Document | None:
    job = turn.state.jobs.get(id)
    return None if job is None else row(turn, job, peer)


def _most(message: ListRequest) -> int:
    return max(1, min(MAX_SHOWN, message.get("most") or SHOWN))


def _rows(
    turn: Turn, event: Received, chosen: bulk.Chosen, most: int, may_be_none: bool = False, **more: object
) -> None:
    """The first of the jobs that were chosen, with all about them; `may_be_none`, unless ids were named."""
    piece = bulk.take(turn, event, chosen)
    rows = [_row_for(turn, job, event) for job in piece.jobs]
    sent = sum(map(len, piece.progress.done))
    size = sum(sum(map(len, shown["command"])) for shown in rows)
    texts = list(map(to_text, rows[: most - sent]))
    if piece.progress.size + size > MAX_BYTES:
        raise TooMuch(f"The answer would have more than {MAX_BYTES >> 20} MiB.", "Ask for fewer jobs at once.")
    piece = piece._replace(over=piece.over or sent + len(rows) >= most)
    progress = bulk.continue_later(turn, event, piece, texts, size=size)
    if progress is not None:
        if chosen.ranges or chosen.last or not may_be_none:
            bulk.refuse_nothing(turn, progress, chosen)
        turn.reply(event.peer, {"jobs": listed(bulk.gathered(progress)), **more})


def _row_for(turn: Turn, job: Job, event: Received) -> dict[str, Any]:
    shown = row(turn, job, event.peer)
    if event.message["do"] == "show":
        shown["usual"] = learned.usual(turn, job) if tuple(shown["command"]) == job.spec.command else None
    message: ShowRequest = event.message
    if message.get("environment"):
        shown["environment"] = turn.state.jobs.environment(job) if job.uid == event.peer.uid else None
    return shown


def _shown(turn: Turn, most: int, all: bool) -> list[int]:
    """Running ones, the line in its order, the held, the last that ended."""
    state = turn.state
    waiting = [job_number(entry.id) for entry in state.requests.line.front(most) if entry.kind == "job"]
    held = [one.id for one in state.store.job_rows(Which(("held",)), most)]
    ended = state.store.job_rows(Which(model_jobs.ENDS), most if all else min(most, SHOWN_ENDED), newest=True)
    return [*sorted(state.jobs.running)[:most], *waiting, *held, *(one.id for one in ended)]


def _ids(turn: Turn, event: Received) -> None:
    """One's own, without anything about them: there may be a hundred thousand."""
    mine = event._replace(message={**event.message, "select": {**(event.message.get("select") or {}), "mine": True}})
    piece = bulk.take_rows(turn, mine, bulk.choice(turn, mine))
    progress = bulk.continue_later(turn, event, piece, [row.id for row in piece.jobs])
    if progress is not None:
        turn.reply(event.peer, Ids(ids=bulk.gathered(progress)))


def _counts(turn: Turn) -> dict[str, Any]:
    return {
        "counts": {state: n for state, n in turn.state.jobs.counts.items() if n},
        "paused": turn.state.settings.paused,
        "time": turn.now,
        "simulated": status.simulated(turn.state),
        "state_trouble": turn.state.changes.unwritable,
    }


def show(turn: Turn, event: Received) -> None:
    _rows(turn, event, bulk.choice(turn, event), MAX_SHOWN)


# ---------------------------------------------------------------------- acting


def _end(turn: Turn, job: Job, why: str, remove: bool = False) -> None:
    if job.state in WAITING:
        jobs.kill_waiting(turn, job, why)
    elif job.state in RUNNING:
        runs.kill(turn, job, why, remove)


def kill(turn: Turn, event: Received) -> None:
    """`by`: for whom a page asks, which root or the broker's user runs for others."""
    message: KillRequest = event.message
    by = message.get("by")
    if by is not None and not turn.state.manages(event.peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may act in another's name.", "Leave out `by`.")
    why = f"killed by {event.peer.user if by is None else by}"
    _each(turn, event, model_jobs.OPEN, lambda job: _end(turn, job, why), "killed")


def rm(turn: Turn, event: Received) -> None:
    """Who comes after a removed job is told of its end first, and then it is forgotten."""
    ids: list[int] = []

    def remove(job: Job) -> None:
        _end(turn, job, f"removed by {event.peer.user}", remove=True)
        if job.state not in RUNNING:
            ids.append(job.id)

    turn.defer(lambda turn: jobs.forget(turn, [gone for id in ids if (gone := turn.state.jobs.get(id)) is not None]))
    _each(turn, event, (*model_jobs.OPEN, *model_jobs.ENDS), remove, "removed")


def pause(turn: Turn, event: Received) -> None:
    message: PauseRequest = event.message
    if message.get("queue"):
        return _pause_queue(turn, event.peer, True)
    return _each(turn, event, ("running",), lambda job: jobs.advance(turn, job, "pause"), "paused")


def resume(turn: Turn, event: Received) -> None:
    message: PauseRequest = event.message
    if message.get("queue"):
        return _pause_queue(turn, event.peer, False)
    events = {"paused": "resume", "held": "let-go"}
    act = lambda job: jobs.advance(turn, job, events[job.state])  # noqa: E731
    return _each(turn, event, tuple(events), act, "resumed")


def _pause_queue(turn: Turn, peer: Peer, paused: bool) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may pause the queue.", "Ask one of them.")
    turn.state.write_setting("paused", "on" if paused else None)
    turn.reply(peer, QueuePaused(paused=paused))


def move(turn: Turn, event: Received) -> None:
    """To a place among those that wait, 0 being the front; with the priority of who stands there.

    Who was told to start now is ahead of all places, and who waits for another job has none.
    """
    job = _one(turn, event)
    if job.state != "waiting":
        raise WrongState(f"Job {job.id} is {job.state}, so it has no place in the line.")
    message: MoveRequest = event.message
    index = max(0, message.get("index") or 0)
    if not turn.state.manages(event.peer.uid):
        _refuse_to_pass(turn, job, index)
    place, priority = turn.state.requests.line.place_at(index, job.planner_id) or (job.added, job.spec.request.priority)
    jobs.advance(turn, job, "edit", place=place, request=job.spec.request._replace(priority=priority))
    turn.reply(event.peer, Done(ids=[job.id], skipped=[]))


def _one(turn: Turn, event: Received) -> Job:
    """The job that a message names by its id, if it is one's own."""
    id = event.message["id"]
    named = event._replace(message={"select": {"ids": [[id, id]]}})
    chosen = bulk.choice(turn, named)
    piece = bulk.take(turn, named, chosen)
    bulk.refuse_nothing(turn, piece.progress, chosen)
    found: Job = piece.jobs[0]
    return found


def _refuse_to_pass(turn: Turn, job: Job, index: int) -> None:
    """Whoever does not run the broker may go ahead of their own jobs only."""
    line = turn.state.requests.line
    before = line.front(line.ahead(job.planner_id))[len(line.forced) + index :]
    others = [entry for entry in before if entry.uid != job.uid]
    if others:
        raise NotPermitted(
            f"{others[-1].user} waits before job {job.id}, and you may pass your own jobs only.",
            "Move it behind them, or ask whoever runs the broker.",
        )


def start(turn: Turn, event: Received) -> None:
    """Now, if whoever runs the broker says so; else ahead of one's own other jobs, and of nobody else's.

    What failed, was killed or lost is run again, and its tries are counted on.
    """
    if not turn.state.manages(event.peer.uid):
        return _start_first(turn, event)

    def start_all(fitting: list[Job]) -> None:
        for job in _open_again(turn, fitting):
            _allow_start(turn, job, forced=True)

    return _all(turn, event, _startable(event), start_all, "started")


def _startable(event: Received) -> tuple[str, ...]:
    """Ended ones if they were named: who says `all` means those that wait."""
    return STARTABLE if _are_named(event) else WAITING


def _are_named(event: Received) -> bool:
    return bool({"ids", "last", "state"} & set(event.message.get("select") or {}))


def _open_again(turn: Turn, fitting: list[Job]) -> list[Job]:
    _check_numbers(turn, [job for job in fitting if job.over])
    return [_again(turn, job, job.tries) if job.over else job for job in fitting]


def _start_first(turn: Turn, event: Received) -> None:
    before = event.progress.done if isinstance(event.progress, BulkProgress) else ()
    done = {line_id(id) for part in before for id in part}

    def start_all(found: list[Job]) -> None:
        fitting, line = _open_again(turn, found), turn.state.requests.line
        first = line.first_of(event.peer.user, done | {job.planner_id for job in fitting})
        behind = [job for job in fitting if first is not None and _standing(job) > _standing(first)]
        places = [] if first is None else line.places_before(first, len(behind))
        moved = dict(zip((job.id for job in behind), places, strict=True))
        for job in fitting:
            if first is not None and job.id in moved:
                _allow_start(turn, job, priority=first.request.priority, place=moved[job.id])
            else:
                _allow_start(turn, job)

    _all(turn, event, _startable(event), start_all, "started")


def _standing(one: Job | Waiting) -> tuple[int, float]:
    request, arrival = (one.spec.request, one.added) if isinstance(one, Job) else (one.request, one.since)
    return request.priority, arrival if one.place is None else one.place


def _allow_start(
    turn: Turn, job: Job, forced: bool = False, priority: int | None = None, place: float | None = None
) -> None:
    request = job.spec.request._replace(not_before=None)
    request = request if priority is None else request._replace(priority=priority)
    groups = turn.world.groups_of(job.uid)
    reason = impossible(turn, Waiting("probe", request, job.user, job.uid, 0.0, groups, "job", forced=forced))
    if reason is not None:
        raise refused(reason, "Change what it asks for with `gpulease edit`.")
    way = "let-go" if job.state == "held" else "edit"
    jobs.advance(turn, job, way, forced=forced, request=request, place=job.place if place is None else place)


def retry(turn: Turn, event: Received) -> None:
    """Complete ones only if they were named: who says `all` means those that did not end well.

    `changes` are as those of `edit`; `options` have an environment in the place of their own.
    """
    message: RetryRequest = event.message
    changes = message.get("changes") or {}
    strange = sorted(set(changes) - {"request", "time_limit"})
    if strange:
        raise UsageError(f"{strange[0][:40]!r} cannot be changed by `retry`.", "See `gpulease retry --help`.")

    def all_again(fitting: list[Job]) -> None:
        _check_numbers(turn, fitting)
        key = renew_environment(turn, event, fitting)
        for job in fitting:
            fields = edited(turn, job, changes)
            own = job.spec.environment if key is None or job.uid != event.peer.uid else key
            _again(turn, job, environment=own, **fields)
        if key is not None:
            turn.state.jobs.forget_environments({job.spec.environment for job in fitting} - {key})

    _all(turn, event, model_jobs.ENDS if _are_named(event) else UNDONE, all_again, "run again")


def _check_numbers(turn: Turn, ended: list[Job]) -> None:
    for uid, one in {job.uid: job for job in ended}.items():
        check_numbers(turn, one, sum(job.uid == uid for job in ended))


def _again(turn: Turn, job: Job, tries: int = 0, **fields: object) -> Job:
    after = tuple(id for id, state in turn.state.jobs.states(job.spec.after).items() if state in model_jobs.OPEN)
    jobs.open_again(turn, job.id)
    return jobs.advance(
        turn, job, "retry", added=turn.state.requests.since(turn.now), place=None, tries=tries, peak_memory=None,
        after=after, met=(), started=None, exit_code=None, signal=None, why=None, ended=None, out_of_memory=False,
        **fields,
    )  # fmt: skip


def edit(turn: Turn, event: Received) -> None:
    """All of them, or none if one of the changes is not right: what takes several pieces is gone through twice."""
    message: EditRequest = event.message
    changes, before = message["changes"], event.progress
    checked = isinstance(before, BulkProgress) and before.checked

    def change(job: Job) -> None:
        found[job.id] = edited(turn, job, changes, event.message.get("cap"))

    def act(job: Job) -> None:
        fields = found.get(job.id) or edited(turn, job, changes, event.message.get("cap"))
        if "at_most" in fields:
            caps.begin(turn, model_jobs.changed(job, **fields), turn.state.jobs.number)
        jobs.advance(turn, job, "edit", **fields)

    found: dict[int, dict[str, Any]] = {}
    if not checked:
        piece = bulk.take(turn, event, bulk.choice(turn, event))
        if "at_most" in changes and before is None:
            event = caps.named(event, (job for job in piece.jobs if job.state in WAITING))
        for job in piece.jobs:
            if job.state in WAITING:
                change(job)
        if not piece.over:
            return turn.emit(Continue(event._replace(progress=piece.progress)))
        if before is not None:
            again = BulkProgress(0, piece.progress.last, checked=True)
            return turn.emit(Continue(event._replace(progress=again)))
    return _each(turn, event, WAITING, act, "edited")


def clean(turn: Turn, event: Received) -> None:
    chosen = bulk.choice(turn, event, model_jobs.ENDS)
    piece = bulk.take(turn, event, chosen)
    over = [job for job in piece.jobs if job.over]
    jobs.forget(turn, over)
    progress = bulk.continue_later(turn, event, piece, [job.id for job in over])
    if progress is not None:
        if chosen.ranges or progress.found:
            bulk.refuse_nothing(turn, progress, chosen)
        turn.reply(event.peer, Done(ids=bulk.gathered(progress), skipped=[]))


def set_parameter(turn: Turn, event: Received) -> None:
    message: SetRequest = event.message
    asked, text = message.get("name"), message.get("value")
    name = None if asked is None else settings.find(asked)
    if name is not None and text is not None:
        _set(turn, event.peer, name, text)
    state = turn.state
    rows = settings.shown(state.settings, state.policy, state.texts, state.config, state.manages(event.peer.uid))
    for row in rows:
        row["warnings"] = _warnings(turn, row["name"]) if name in (None, row["name"]) else []
    turn.reply(event.peer, {"parameters": [row for row in rows if name in (None, row["name"])]})


def _warnings(turn: Turn, name: str) -> list[str]:
    if name == "limits":
        return unknown_names(turn)
    trouble = trouble_of(turn.state.requests.custom_order) if name == "policy.order" else None
    return [] if trouble is None else [f"{trouble} The built-in order goes on."]


def _set(turn: Turn, peer: Peer, name: str, text: str) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may set parameters.", "Ask one of them.")
    if not settings.PARAMETERS[name].by_set:
        step = "Write it there, and send the broker SIGHUP."
        raise NotPermitted(f"{name} is code that the broker runs: it is set in the config file only.", step)
    if text != "default":
        settings.parse(name, text)
    turn.state.write_setting(name, None if text == "default" else text)


JOB_VERBS: dict[str, Callable[[Turn, Received], None]] = {
    "add": add,
    "ls": ls,
    "show": show,
    "kill": kill,
    "rm": rm,
    "pause": pause,
    "resume": resume,
    "moved": transfer.moved,
    "let_go": transfer.let_go,
    "move": move,
    "start": start,
    "retry": retry,
    "edit": edit,
    "clean": clean,
    "set": set_parameter,
}
