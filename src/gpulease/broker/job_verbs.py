"""What each request about jobs does. One function a verb; each acts on one's own jobs, root's on those it names."""

from __future__ import annotations

from collections.abc import Callable

from gpulease import job as jobs
from gpulease.broker import job_ends, job_life, reports, requesting, settings
from gpulease.broker.allowances import refused
from gpulease.broker.events import Received
from gpulease.broker.job_adding import add, edited
from gpulease.broker.job_input import impossible, is_text
from gpulease.broker.peer import Peer
from gpulease.broker.turn import Turn
from gpulease.errors import NotFound, NotPermitted, UsageError, WrongState
from gpulease.job import Job
from gpulease.job_selection import EVERYBODY
from gpulease.messages import Message
from gpulease.model import Waiting

SHOWN = 50
SHOWN_ENDED = 10
MOST_SHOWN = 5000  # of one answer, which must fit a message
MOST_RANGES = 500
CHOICES = {"ids", "all", "last", "label", "state", "user", "mine"}
WAITING = ("waiting", "held")
RUNNING = ("running", "paused")
INNER = ("environment", "history", "run", "ending", "removing", "log_begin", "place", "forced", "met")

# ---------------------------------------------------------------------- choosing


def chosen(turn: Turn, peer: Peer, select: Message, states: tuple[str, ...] = (), look: bool = False) -> list[Job]:
    """The jobs that a selection names: ids and ranges, all, last, a label, a state, a user.

    Only root may change others', and has to name them: by ids, a user, or "*" for every user. All may `look`.
    """
    ranges = _ranges(select)
    label, state, user = (select.get(name) for name in ("label", "state", "user"))
    if not all(value is None or (isinstance(value, str) and is_text(value)) for value in (label, state, user)):
        raise UsageError("The choice of jobs is not right.", "Give the label, the state and the user as text.")
    everyone = look or peer.uid == 0
    if user == EVERYBODY and not everyone:
        raise NotPermitted("Only root may do that to the jobs of every user.", "Leave --all-users out.")
    uid = _whose(turn, peer, select, user, look or bool(ranges))
    last = bool(select.get("last"))
    rows = turn.state.store.jobs((state,) if state else states, uid, label, ranges, 1 if last else None, last)
    found = [turn.state.running.get(row["id"]) or jobs.read(row) for row in rows]
    if not found:
        raise NotFound(f"No such job{_called(ranges)}.", "See the ids with `gpulease ls --all`.")
    mine = [job for job in found if everyone or job.uid == peer.uid]
    if not mine:
        raise NotPermitted(f"Job {found[0].id} belongs to {found[0].user}.", "Only its user or root may do that.")
    return mine


def _whose(turn: Turn, peer: Peer, select: Message, user: str | None, others: bool) -> int | None:
    """The user whose jobs are meant; None for all of them."""
    if select.get("mine") or (user is None and not others):
        return peer.uid
    if user is None or user == EVERYBODY:
        return None
    uid = turn.world.uid_of(user)
    if uid is None:
        raise NotFound(f"There is no user {user[:40]!r}.", "Check the name.")
    return uid


def _ranges(select: Message) -> list[tuple[int, int]]:
    if not set(select) <= CHOICES or select.get("ids") == []:
        raise UsageError("The choice of jobs is not right.", f"Choose by {', '.join(sorted(CHOICES))}.")
    ranges = select.get("ids") or []
    good = isinstance(ranges, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(type(end) is int and 0 <= end < 1 << 62 for end in pair)
        for pair in ranges
    )
    if not good:
        raise UsageError("The choice of jobs is not right.", "Write ids and ranges, as 3,5-9.")
    if len(ranges) > MOST_RANGES:
        raise UsageError(f"More than {MOST_RANGES} ids and ranges were given.", "Use ranges, as 5-900, or --label.")
    return [(first, last) for first, last in ranges]


def _called(ranges: list[tuple[int, int]]) -> str:
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:5])
    return f": {named}" if named else ""


def _done(turn: Turn, peer: Peer, done: list[Job], skipped: list[str] | None = None) -> None:
    turn.reply(peer, ids=[job.id for job in done], skipped=skipped or [])


def _each(turn: Turn, event: Received, states: tuple[str, ...], act: Callable[[Job], object], verb: str) -> None:
    """Do `act` to each chosen job that is in one of `states`; if none is, say in which it is."""
    found, fitting = _fitting(turn, event, states, verb)
    for job in fitting:
        act(job)
    _done(turn, event.peer, fitting, _others(found, states, event))


def _fitting(turn: Turn, event: Received, states: tuple[str, ...], verb: str) -> tuple[list[Job], list[Job]]:
    if event.message.get("select") is None:
        raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, --label or --state.")
    found = chosen(turn, event.peer, event.message["select"])
    fitting = [job for job in found if job.state in states]
    if not fitting:
        raise WrongState(f"Job {found[0].id} is {found[0].state}, so it cannot be {verb}.")
    return found, fitting


def _others(found: list[Job], states: tuple[str, ...], event: Received) -> list[str]:
    """What was named and left as it is: jobs in another state, and ids that are nobody's."""
    skipped = [f"{job.id} is {job.state}" for job in found if job.state not in states]
    return [*skipped, *(f"{id} is not there, or not yours" for id in missing(found, event.message["select"]))]


def missing(found: list[Job], select: Message) -> list[int]:
    """Ids that were named one by one and are nobody's."""
    there = {job.id for job in found}
    return [first for first, last in select.get("ids") or [] if first == last and first not in there]


# ---------------------------------------------------------------------- looking


def row(turn: Turn, job: Job, peer: Peer) -> Message:
    fields = jobs.document(job)
    for name in INNER:
        fields.pop(name)
    waits = job.state == "waiting" and job.planner_id in turn.state.line
    fields["why_waiting"] = requesting.why(turn, job.planner_id) if waits else None
    if turn.state.settings.hide_commands and peer.uid not in (0, job.uid):
        fields.update(command=["(hidden)"], cwd="", log="", name=None, note=None, why=None)
    return fields


def ls(turn: Turn, event: Received) -> None:
    message = event.message
    most = max(1, min(MOST_SHOWN, message.get("most") or SHOWN))
    select = message.get("select")
    if message.get("ids"):
        return _ids(turn, event.peer, select or {})
    shown = chosen(turn, event.peer, select, look=True) if select else _shown(turn, most, bool(message.get("all")))
    rows = [row(turn, job, event.peer) for job in (shown[:most] if select else shown)]
    return turn.reply(event.peer, jobs=rows, **_counts(turn))


def _shown(turn: Turn, most: int, all: bool) -> list[Job]:
    """Running ones, the line in its order, the held, the last that ended."""
    state = turn.state
    shown = [state.running[id] for id in sorted(state.running)]
    waiting = [entry for entry in state.line.front(most) if entry.kind == "job"]
    shown += [job for entry in waiting if (job := state.job(int(entry.id[1:]))) is not None]
    shown += [jobs.read(stored) for stored in state.store.jobs(("held",), most=most)]
    ended = state.store.jobs(jobs.ENDS, most=most if all else min(most, SHOWN_ENDED), newest=True)
    return shown + [jobs.read(stored) for stored in ended]


def _ids(turn: Turn, peer: Peer, select: Message) -> None:
    """One's own, without anything about them: there may be a hundred thousand."""
    try:
        found = [job.id for job in chosen(turn, peer, {**select, "mine": True})]
    except NotFound:
        found = []
    turn.reply(peer, ids=found)


def _counts(turn: Turn) -> Message:
    return {
        "counts": {state: n for state, n in turn.state.counts.items() if n},
        "paused": turn.state.settings.paused,
        "simulated": reports.simulated(turn.state),
    }


def show(turn: Turn, event: Received) -> None:
    peer = event.peer
    found = chosen(turn, peer, event.message["select"])[:MOST_SHOWN]
    rows = [row(turn, job, peer) for job in found]
    if event.message.get("environment"):
        for shown, job in zip(rows, found, strict=True):
            shown["environment"] = turn.state.environment(job) if job.uid == peer.uid else None
    turn.reply(peer, jobs=rows)


# ---------------------------------------------------------------------- acting


def _end(turn: Turn, job: Job, why: str, remove: bool = False) -> None:
    if job.state in WAITING:
        job_life.kill_waiting(turn, job, why)
    elif job.state in RUNNING:
        job_ends.kill(turn, job, why, remove)


def kill(turn: Turn, event: Received) -> None:
    found = chosen(turn, event.peer, event.message["select"])
    fitting = [job for job in found if not job.over]
    if not fitting:
        raise WrongState(f"Job {found[0].id} is {found[0].state} already.")
    for job in fitting:
        _end(turn, job, f"killed by {event.peer.user}")
    _done(turn, event.peer, fitting, _others(found, jobs.OPEN, event))


def rm(turn: Turn, event: Received) -> None:
    """Who comes after a removed job is told of its end first, and then it is forgotten."""
    found = chosen(turn, event.peer, event.message["select"])
    for job in found:
        _end(turn, job, f"removed by {event.peer.user}", remove=True)
    ids = [job.id for job in found if job.state not in RUNNING]
    turn.defer(lambda turn: job_life.forget(turn, [gone for id in ids if (gone := turn.state.job(id)) is not None]))
    _done(turn, event.peer, found, _others(found, (*jobs.OPEN, *jobs.ENDS), event))


def pause(turn: Turn, event: Received) -> None:
    if event.message.get("queue"):
        return _pause_queue(turn, event.peer, True)
    return _each(turn, event, ("running",), lambda job: job_life.advance(turn, job, "pause"), "paused")


def resume(turn: Turn, event: Received) -> None:
    if event.message.get("queue"):
        return _pause_queue(turn, event.peer, False)
    events = {"paused": "resume", "held": "let-go"}
    return _each(turn, event, tuple(events), lambda job: job_life.advance(turn, job, events[job.state]), "resumed")


def _pause_queue(turn: Turn, peer: Peer, paused: bool) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may pause the queue.", "Ask one of them.")
    turn.state.write_setting("paused", "on" if paused else None)
    turn.reply(peer, paused=paused)


def move(turn: Turn, event: Received) -> None:
    """To a place among those that wait, 0 being the front; with the priority of who stands there.

    Who was told to start now is ahead of all places, and who waits for another job has none.
    """
    id = event.message["id"]
    job = chosen(turn, event.peer, {"ids": [[id, id]]})[0]
    if job.state != "waiting":
        raise WrongState(f"Job {job.id} is {job.state}, so it has no place in the line.")
    index = max(0, event.message.get("index") or 0)
    if not turn.state.manages(event.peer.uid):
        _refuse_to_pass(turn, job, index)
    place, priority = turn.state.line.place_at(index, job.planner_id) or (job.added, job.request.priority)
    job_life.advance(turn, job, "edit", place=place, request=job.request._replace(priority=priority))
    _done(turn, event.peer, [job])


def _refuse_to_pass(turn: Turn, job: Job, index: int) -> None:
    """Whoever does not run the broker may go ahead of their own jobs only."""
    line = turn.state.line
    before = line.front(line.ahead(job.planner_id))[len(line.forced) + index :]
    others = [entry for entry in before if entry.uid != job.uid]
    if others:
        raise NotPermitted(
            f"{others[-1].user} waits before job {job.id}, and you may pass your own jobs only.",
            "Move it behind them, or ask whoever runs the broker.",
        )


def start(turn: Turn, event: Received) -> None:
    """Now, if whoever runs the broker says so; else ahead of one's own other jobs, and of nobody else's."""
    if not turn.state.manages(event.peer.uid):
        return _start_first(turn, event)
    return _each(turn, event, WAITING, lambda job: _let_start(turn, job, forced=True), "started")


def _start_first(turn: Turn, event: Received) -> None:
    found, fitting = _fitting(turn, event, WAITING, "started")
    line = turn.state.line
    first = line.first_of(event.peer.user, {job.planner_id for job in fitting})
    behind = [job for job in fitting if first is not None and _standing(job) > _standing(first)]
    places = [] if first is None else line.places_before(first, len(behind))
    moved = dict(zip((job.id for job in behind), places, strict=True))
    for job in fitting:
        if first is not None and job.id in moved:
            _let_start(turn, job, priority=first.request.priority, place=moved[job.id])
        else:
            _let_start(turn, job)
    _done(turn, event.peer, fitting, _others(found, WAITING, event))


def _standing(one: Job | Waiting) -> tuple[int, float]:
    arrival = one.added if isinstance(one, Job) else one.since
    return one.request.priority, arrival if one.place is None else one.place


def _let_start(
    turn: Turn, job: Job, forced: bool = False, priority: int | None = None, place: float | None = None
) -> None:
    request = job.request._replace(not_before=None, priority=job.request.priority if priority is None else priority)
    groups = turn.world.groups_of(job.uid)
    reason = impossible(turn, Waiting("probe", request, job.user, job.uid, 0.0, groups, "job", forced=forced))
    if reason is not None:
        raise refused(reason, "Change what it asks for with `gpulease edit`.")
    way = "let-go" if job.state == "held" else "edit"
    job_life.advance(turn, job, way, forced=forced, request=request, place=job.place if place is None else place)


def retry(turn: Turn, event: Received) -> None:
    def again(job: Job) -> None:
        after = tuple(id for id in job.after if (other := turn.state.job(id)) is not None and not other.over)
        job_life.advance(
            turn, job, "retry", added=turn.state.since(turn.now), place=None, tries=0, peak_memory=None, after=after,
            met=(), exit_code=None, signal=None, why=None, ended=None, out_of_memory=False,
        )  # fmt: skip

    _each(turn, event, jobs.ENDS, again, "run again")


def edit(turn: Turn, event: Received) -> None:
    """All of them, or none if one of the changes is not right."""
    found, fitting = _fitting(turn, event, WAITING, "edited")
    for job, changes in [(job, edited(turn, job, event.message["changes"])) for job in fitting]:
        job_life.advance(turn, job, "edit", **changes)
    _done(turn, event.peer, fitting, _others(found, WAITING, event))


def clean(turn: Turn, event: Received) -> None:
    select = event.message.get("select") or {}
    try:
        found = chosen(turn, event.peer, select, jobs.ENDS)
    except NotFound:
        if select.get("ids"):
            raise
        found = []
    over = [job for job in found if job.over]
    job_life.forget(turn, over)
    _done(turn, event.peer, over)


def set_parameter(turn: Turn, event: Received) -> None:
    asked, text = event.message.get("name"), event.message.get("value")
    name = None if asked is None else settings.find(asked)
    if name is not None and text is not None:
        _set(turn, event.peer, name, text)
    state = turn.state
    rows = settings.shown(state.settings, state.policy, state.texts, state.config, state.manages(event.peer.uid))
    turn.reply(event.peer, parameters=[entry for entry in rows if name in (None, entry["name"])])


def _set(turn: Turn, peer: Peer, name: str, text: str) -> None:
    if not turn.state.manages(peer.uid):
        raise NotPermitted("Only root and the user who runs the broker may set parameters.", "Ask one of them.")
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
    "move": move,
    "start": start,
    "retry": retry,
    "edit": edit,
    "clean": clean,
    "set": set_parameter,
}
