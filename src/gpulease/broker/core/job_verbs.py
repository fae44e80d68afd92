"""What each request about jobs does. One function a verb; each acts on one's own jobs, root's on those it names."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from gpulease.broker.core import bulk, caps, job_rows, jobs, runs, transfer
from gpulease.broker.core.add import add, check_numbers, edited, renew_environment
from gpulease.broker.core.events import BulkProgress, Received
from gpulease.broker.core.instructions import Continue
from gpulease.broker.core.limits import impossible, refused
from gpulease.broker.core.turn import Turn
from gpulease.errors import NotPermitted, UsageError, WrongState
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import line_id
from gpulease.model.jobs import RUNNING, WAITING, Job
from gpulease.model.peer import Peer
from gpulease.model.values import Waiting
from gpulease.planner import of_user
from gpulease.protocol.messages import (
    CleanRequest,
    Done,
    EditRequest,
    JobsRequest,
    KillRequest,
    MoveRequest,
    PauseRequest,
    QueuePaused,
    RetryRequest,
)  # fmt: skip
from gpulease.render.jobs import left_text

STARTABLE = (*WAITING, "failed", "killed", "lost")
UNDONE = tuple(end for end in model_jobs.ENDS if end != "complete")
STARTED = ("resumed", "started", "run again")  # what is not done by hand to a copy that is being moved here
ENDED = ("killed", "removed")
HALT = 5.0  # seconds without another piece, after which jobs start again
AGAIN = ("started", "run again")  # what is done to jobs by verbs that run ended ones
FORGOTTEN = "over, and its variables were forgotten"

# ---------------------------------------------------------------------- many of them


def _each(turn: Turn, event: Received[Any], states: tuple[str, ...], act: Callable[[Job], object], wrong: str) -> None:
    _all(turn, event, states, lambda fitting: list(map(act, fitting)), wrong)


def _all(
    turn: Turn, event: Received[Any], states: tuple[str, ...], act: Callable[[list[Job]], object], wrong: str
) -> None:
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


def _halt_starts(turn: Turn, event: Received[Any], chosen: bulk.Chosen, goes_on: bool) -> None:
    """What is to be killed does not start before its piece is reached."""
    uid, peer = chosen.which.uid, event.peer
    user = peer.user if uid == peer.uid else event.message["select"].get("user")
    whose = "job" if uid is None else of_user("job", user)
    if goes_on:
        turn.state.jobs.halts.put(whose, turn.now + HALT)
    elif event.progress is not None:
        turn.state.jobs.halts.drop(whose)


def _why_not_again(turn: Turn, job: Job, again: Container[int], event: Received[Any]) -> str | None:
    """Why one that is over cannot run again: its variables were forgotten and no others are given, or it comes after
    one that did not end well, and is not run again before."""
    renewed = event.message.get("options") is not None and job.uid == event.peer.uid
    if not renewed and not turn.state.jobs.has_environment(job):
        return FORGOTTEN
    if job.spec.after_any:
        return None
    ends = ((id, end) for id, end in turn.state.jobs.states(job.spec.after).items() if id not in again)
    return next((f"to come after {end} job {id}" for id, end in ends if end in UNDONE), None)


def _answer(turn: Turn, event: Received[Any], chosen: bulk.Chosen, progress: BulkProgress, wrong: str) -> None:
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
    """The error when it can be done to none of the jobs: it lists them with their states."""
    step = None
    if any(text.endswith(FORGOTTEN) for text in skipped):
        step = "Its user can give it the variables of this shell: `gpulease retry --new-env ID`. See `keep-env-for`."
    elif any(" is to come after " in text for text in skipped):
        step = "Retry the jobs that they come after too, in the same call or before."
    elif any(text.endswith(transfer.IN_MOVE) for text in skipped):
        step = transfer.FINISH
    elif wrong == "edited" and any(text.rpartition(" ")[2] in model_jobs.ENDS for text in skipped):
        step = "Change an ended job when you retry it: `gpulease retry ID --min-memory 40G`."
    elif wrong == "run again" and any(text.endswith("complete") for text in skipped):
        step = "To run complete jobs again, give their ids, or use `gpulease retry --state complete`."
    if len(skipped) == 1:
        return WrongState(f"Job {skipped[0]}, so it cannot be {wrong}.", step)
    return WrongState(f"None of these jobs can be {wrong}: {left_text(skipped)}.", step)


# ---------------------------------------------------------------------- acting


def _end(turn: Turn, job: Job, why: str, remove: bool = False) -> None:
    if job.state in WAITING:
        jobs.kill_waiting(turn, job, why)
    elif job.state in RUNNING:
        runs.kill(turn, job, why, remove)


def kill(turn: Turn, event: Received[KillRequest]) -> None:
    """`by`: for whom a page asks, which root or the broker's user runs for others."""
    message = event.message
    by = message.get("by")
    if by is not None and not turn.state.manages(event.peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may act in another's name.", "Leave out `by`.")
    why = f"killed by {event.peer.user if by is None else by}"
    _each(turn, event, model_jobs.OPEN, lambda job: _end(turn, job, why), "killed")


def rm(turn: Turn, event: Received[JobsRequest]) -> None:
    """Jobs that come after a removed one learn of its end first. Then it is forgotten."""
    ids: list[int] = []

    def remove(job: Job) -> None:
        _end(turn, job, f"removed by {event.peer.user}", remove=True)
        if job.state not in RUNNING:
            ids.append(job.id)

    turn.defer(lambda turn: jobs.forget(turn, [gone for id in ids if (gone := turn.state.jobs.get(id)) is not None]))
    _each(turn, event, (*model_jobs.OPEN, *model_jobs.ENDS), remove, "removed")


def pause(turn: Turn, event: Received[PauseRequest]) -> None:
    message = event.message
    if message.get("queue"):
        return _pause_queue(turn, event.peer, True)
    return _each(turn, event, ("running",), lambda job: jobs.advance(turn, job, "pause"), "paused")


def resume(turn: Turn, event: Received[PauseRequest]) -> None:
    message = event.message
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


def move(turn: Turn, event: Received[MoveRequest]) -> None:
    """To a place among those that wait, 0 being the front; with the priority of who stands there.

    A job that was started with `start` is ahead of all places. A job that waits for another job has no place.
    """
    job = _one(turn, event)
    if job.state != "waiting":
        raise WrongState(f"Job {job.id} is {job.state}, so it has no place in the queue.")
    message = event.message
    index = max(0, message.get("index") or 0)
    if not turn.state.manages(event.peer.uid):
        _refuse_to_pass(turn, job, index)
    place, priority = turn.state.requests.line.place_at(index, job.planner_id) or (job.added, job.spec.request.priority)
    jobs.advance(turn, job, "edit", place=place, request=job.spec.request._replace(priority=priority))
    turn.reply(event.peer, Done(ids=[job.id], skipped=[]))


def _one(turn: Turn, event: Received[Any]) -> Job:
    """The job that a message names by its id, if it is one's own."""
    id = event.message["id"]
    named = event._replace(message={"select": {"ids": [[id, id]]}})
    chosen = bulk.choice(turn, named)
    piece = bulk.take(turn, named, chosen)
    bulk.refuse_nothing(turn, piece.progress, chosen)
    found: Job = piece.jobs[0]
    return found


def _refuse_to_pass(turn: Turn, job: Job, index: int) -> None:
    """A user who does not run the broker may go ahead of their own jobs only."""
    line = turn.state.requests.line
    before = line.front(line.ahead(job.planner_id))[len(line.forced) + index :]
    others = [entry for entry in before if entry.uid != job.uid]
    if others:
        raise NotPermitted(
            f"{others[-1].user} waits before job {job.id}, and you may pass your own jobs only.",
            "Move it behind them, or ask the broker's administrator.",
        )


def start(turn: Turn, event: Received[JobsRequest]) -> None:
    """Now, if whoever runs the broker says so; else ahead of one's own other jobs, and of nobody else's.

    What failed, was killed or lost is run again, and its tries are counted on.
    """
    if not turn.state.manages(event.peer.uid):
        return _start_first(turn, event)

    def start_all(fitting: list[Job]) -> None:
        for job in _open_again(turn, fitting):
            _allow_start(turn, job, forced=True)

    return _all(turn, event, _startable(event), start_all, "started")


def _startable(event: Received[Any]) -> tuple[str, ...]:
    """Ended ones if they were named: who says `all` means those that wait."""
    return STARTABLE if _are_named(event) else WAITING


def _are_named(event: Received[Any]) -> bool:
    return bool({"ids", "last", "state"} & set(event.message.get("select") or {}))


def _open_again(turn: Turn, fitting: list[Job]) -> list[Job]:
    _check_numbers(turn, [job for job in fitting if job.over])
    return [_again(turn, job, job.tries) if job.over else job for job in fitting]


def _start_first(turn: Turn, event: Received[Any]) -> None:
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


def retry(turn: Turn, event: Received[RetryRequest]) -> None:
    """Complete ones only if they were named: who says `all` means those that did not end well.

    `changes` are as those of `edit`; `options` have an environment in the place of their own.
    """
    message = event.message
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


def edit(turn: Turn, event: Received[EditRequest]) -> None:
    """All of them, or none if one of the changes is not right: what takes several pieces is gone through twice."""
    message = event.message
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


def clean(turn: Turn, event: Received[CleanRequest]) -> None:
    chosen = bulk.choice(turn, event, model_jobs.ENDS)
    piece = bulk.take(turn, event, chosen)
    over = [job for job in piece.jobs if job.over]
    jobs.forget(turn, over)
    progress = bulk.continue_later(turn, event, piece, [job.id for job in over])
    if progress is not None:
        if chosen.ranges or progress.found:
            bulk.refuse_nothing(turn, progress, chosen)
        turn.reply(event.peer, Done(ids=bulk.gathered(progress), skipped=[]))


JOB_VERBS: dict[str, Callable[[Turn, Received[Any]], None]] = {
    "add": add,
    "ls": job_rows.ls,
    "show": job_rows.show,
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
}
