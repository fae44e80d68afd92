"""What each request about jobs does. One function a verb; each acts on one's own jobs, root's on all."""

from __future__ import annotations

from collections.abc import Callable

from gpulease import job as jobs
from gpulease.broker import settings
from gpulease.broker.connection import Connection
from gpulease.broker.core import Core
from gpulease.broker.job_adding import add, edited
from gpulease.broker.job_options import impossible
from gpulease.errors import NotEnoughDevices, NotFound, NotPermitted, UsageError, WrongState
from gpulease.job import Job
from gpulease.messages import Message
from gpulease.model import Waiting
from gpulease.stores.base import Change

SHOWN = 50
SHOWN_ENDED = 10
MOST_SHOWN = 5000  # of one answer, which must fit a message
MOST_RANGES = 500
STEP = 1e-3  # seconds of arrival between a moved job and who stands at the end where it goes
WAITING = ("waiting", "held")
RUNNING = ("running", "paused")
INNER = ("environment", "history", "run", "ending", "removing", "log_begin", "place", "forced", "bound")

# ---------------------------------------------------------------------- choosing


def chosen(
    core: Core, connection: Connection, select: Message, states: tuple[str, ...] = (), look: bool = False
) -> list[Job]:
    """The jobs that a selection names: ids and ranges, all, last, a label, a state.

    One's own, unless root asks, or somebody who only wants to `look`.
    """
    everyone = look or connection.uid == 0
    ranges = _ranges(select)
    label, state = select.get("label"), select.get("state")
    if not all(value is None or isinstance(value, str) for value in (label, state)):
        raise UsageError("The choice of jobs is not right.")
    uid = None if everyone or ranges else connection.uid
    last = bool(select.get("last"))
    rows = core.store.jobs((state,) if state else states, uid, label, ranges, 1 if last else None, last)
    found = [core.queue.running.get(row["id"]) or jobs.read(row) for row in rows]
    if not found:
        raise NotFound(f"No such job{_called(ranges)}.", "See the ids with `gpulease ls --all`.")
    mine = [job for job in found if everyone or job.uid == connection.uid]
    if not mine:
        raise NotPermitted(f"Job {found[0].id} belongs to {found[0].user}.", "Only its user or root may do that.")
    return mine


def _ranges(select: Message) -> list[tuple[int, int]]:
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


def _done(core: Core, connection: Connection, done: list[Job], skipped: list[str] | None = None) -> None:
    core.edge.send(connection, {"ok": {"ids": [job.id for job in done], "skipped": skipped or []}})


def _each(
    core: Core, connection: Connection, message: Message, states: tuple[str, ...], act: Callable[[Job], None], verb: str
) -> None:
    """Do `act` to each chosen job that is in one of `states`; if none is, say in which it is."""
    found, fitting = _fitting(core, connection, message, states, verb)
    for job in fitting:
        act(job)
    _done(core, connection, fitting, _others(found, states, message))


def _fitting(
    core: Core, connection: Connection, message: Message, states: tuple[str, ...], verb: str
) -> tuple[list[Job], list[Job]]:
    if message.get("select") is None:
        raise UsageError("No job was named.", "Give ids or ranges, as 3,5-9, or `all`, `last`, --label or --state.")
    found = chosen(core, connection, message["select"])
    fitting = [job for job in found if job.state in states]
    if not fitting:
        raise WrongState(f"Job {found[0].id} is {found[0].state}, so it cannot be {verb}.")
    return found, fitting


def _others(found: list[Job], states: tuple[str, ...], message: Message) -> list[str]:
    """What was named and left as it is: jobs in another state, and ids that are nobody's."""
    skipped = [f"{job.id} is {job.state}" for job in found if job.state not in states]
    return [*skipped, *(f"{id} is not there, or not yours" for id in _missing(found, message["select"]))]


def _missing(found: list[Job], select: Message) -> list[int]:
    """Ids that were named one by one and are nobody's."""
    there = {job.id for job in found}
    return [first for first, last in select.get("ids") or [] if first == last and first not in there]


# ---------------------------------------------------------------------- looking


def row(core: Core, job: Job, connection: Connection) -> Message:
    fields = jobs.document(job)
    for name in INNER:
        fields.pop(name)
    waits = job.state == "waiting" and job.planner_id in core.line
    fields["why_waiting"] = core.asking.why(job.planner_id) if waits else None
    if core.settings.hide_commands and connection.uid not in (0, job.uid):
        fields.update(command=["(hidden)"], cwd="", log="", name=None, note=None, why=None)
    return fields


def ls(core: Core, connection: Connection, message: Message) -> None:
    most = max(1, min(MOST_SHOWN, message.get("most") or SHOWN))
    select = message.get("select")
    if message.get("ids"):
        return _ids(core, connection, select or {})
    shown = chosen(core, connection, select, look=True) if select else _shown(core, most, bool(message.get("all")))
    rows = [row(core, job, connection) for job in (shown[:most] if select else shown)]
    return core.edge.send(connection, {"ok": {"jobs": rows, **_counts(core)}})


def _shown(core: Core, most: int, all: bool) -> list[Job]:
    """Running ones, the line in its order, the held, the last that ended."""
    shown = [core.queue.running[id] for id in sorted(core.queue.running)]
    waiting = [entry for entry in core.queue.first_waiting(most) if entry.kind == "job"]
    shown += [job for entry in waiting if (job := core.queue.get(int(entry.id[1:]))) is not None]
    shown += [jobs.read(stored) for stored in core.store.jobs(("held",), most=most)]
    ended = core.store.jobs(jobs.ENDS, most=most if all else min(most, SHOWN_ENDED), newest=True)
    return shown + [jobs.read(stored) for stored in ended]


def _ids(core: Core, connection: Connection, select: Message) -> None:
    """One's own, without anything about them: there may be a hundred thousand."""
    try:
        found = [job.id for job in chosen(core, connection, select) if job.uid == connection.uid]
    except NotFound:
        found = []
    core.edge.send(connection, {"ok": {"ids": found}})


def _counts(core: Core) -> Message:
    return {
        "counts": {state: n for state, n in core.queue.counts.items() if n},
        "paused": core.settings.paused,
        "simulated": core.simulated,
    }


def show(core: Core, connection: Connection, message: Message) -> None:
    found = chosen(core, connection, message["select"])[:MOST_SHOWN]
    rows = [row(core, job, connection) for job in found]
    if message.get("environment"):
        for shown, job in zip(rows, found, strict=True):
            shown["environment"] = core.queue.environment(job) if job.uid == connection.uid else None
    core.edge.send(connection, {"ok": {"jobs": rows}})


def wait(core: Core, connection: Connection, message: Message) -> None:
    found = chosen(core, connection, message["select"])
    missing = _missing(found, message["select"])
    if missing:
        raise NotFound(f"Job {missing[0]} is not there, or not yours.", "See the ids with `gpulease ls --all`.")
    core.queue.watching.watch(connection, found)


# ---------------------------------------------------------------------- acting


def kill(core: Core, connection: Connection, message: Message) -> None:
    why = f"killed by {connection.user}"
    found = chosen(core, connection, message["select"])
    fitting = [job for job in found if not job.over]
    if not fitting:
        raise WrongState(f"Job {found[0].id} is {found[0].state} already.")
    core.queue.endings.end_waiting([(job, why) for job in fitting if job.state in WAITING])
    core.queue.killing.kill([job for job in fitting if job.state in RUNNING], why)
    _done(core, connection, fitting, _others(found, jobs.OPEN, message))


def rm(core: Core, connection: Connection, message: Message) -> None:
    found = chosen(core, connection, message["select"])
    why = f"removed by {connection.user}"
    core.queue.endings.end_waiting([(job, why) for job in found if job.state in WAITING])
    core.queue.killing.kill([job for job in found if job.state in RUNNING], why, remove=True)
    ids = [job.id for job in found if job.state not in RUNNING]
    core.queue.endings.forget([gone for id in ids if (gone := core.queue.get(id)) is not None])
    _done(core, connection, found, _others(found, (*jobs.OPEN, *jobs.ENDS), message))


def pause(core: Core, connection: Connection, message: Message) -> None:
    if message.get("queue"):
        return _pause_queue(core, connection, True)
    _each(core, connection, message, ("running",), core.queue.killing.pause, "paused")


def resume(core: Core, connection: Connection, message: Message) -> None:
    if message.get("queue"):
        return _pause_queue(core, connection, False)
    _each(core, connection, message, ("paused", "held"), lambda job: _resume(core, job), "resumed")


def _resume(core: Core, job: Job) -> None:
    if job.state == "paused":
        return core.queue.killing.resume(job)
    core.queue.change(jobs.step(job, "let-go", core.now())[0], job)


def _pause_queue(core: Core, connection: Connection, paused: bool) -> None:
    if not core.edge.manages(connection.uid):
        raise NotPermitted("Only root and the user who runs the broker may pause the queue.", "Ask one of them.")
    core.commit([Change("settings", "paused", {"text": "on"} if paused else None)], [], durable=True)
    core.texts.pop("paused", None)
    if paused:
        core.texts["paused"] = "on"
    core.use_settings()
    core.edge.send(connection, {"ok": {"paused": paused}})


def move(core: Core, connection: Connection, message: Message) -> None:
    """To a place among those that wait, 0 being the front; with the priority of who stands there.

    Who was told to start now is ahead of all places, and who waits for another job has none.
    """
    job = chosen(core, connection, {"ids": [[message["id"], message["id"]]]})[0]
    if job.state != "waiting":
        raise WrongState(f"Job {job.id} is {job.state}, so it has no place in the line.")
    index = max(0, message.get("index") or 0)
    ahead = len(core.line.forced)
    if not core.edge.manages(connection.uid):
        _refuse_to_pass(core, job, index, ahead)
    waiting = core.queue.first_waiting(ahead + index + 2)[ahead:]
    others = [entry for entry in waiting if entry.id != job.planner_id and entry.blocked is None]
    before, behind = others[max(0, index - 1) : index][-1:], others[index : index + 1]
    before = before or ([] if behind or not others else others[-1:])
    priority = (behind or before)[0].request.priority if behind or before else job.request.priority
    near = [entry for entry in (*before, *behind) if entry.request.priority == priority]
    place = _between(near, bool(behind)) if near else job.added
    core.queue.change(job._replace(place=place, request=job.request._replace(priority=priority)), job)
    _done(core, connection, [job])


def _refuse_to_pass(core: Core, job: Job, index: int, ahead: int) -> None:
    """Whoever does not run the broker may go ahead of their own jobs only."""
    before = core.queue.first_waiting(core.line.ahead(job.planner_id))[ahead + index :]
    others = [entry for entry in before if entry.uid != job.uid]
    if others:
        raise NotPermitted(
            f"{others[-1].user} waits before job {job.id}, and you may pass your own jobs only.",
            "Move it behind them, or ask whoever runs the broker.",
        )


def _between(near: list[Waiting], front: bool) -> float:
    places = [entry.since if entry.place is None else entry.place for entry in near]
    if len(places) == 2:
        return sum(places) / 2
    return places[0] - STEP if front else places[0] + STEP


def start(core: Core, connection: Connection, message: Message) -> None:
    def force(job: Job) -> None:
        waiting = jobs.step(job, "let-go", core.now())[0] if job.state == "held" else job
        request = waiting.request._replace(not_before=None)
        trouble = impossible(core, request)
        if trouble is not None:
            raise NotEnoughDevices(trouble, "Change what it asks for with `gpulease edit`.")
        core.queue.change(
            waiting._replace(forced=True, bound=not core.edge.manages(connection.uid), request=request), job
        )

    _each(core, connection, message, WAITING, force, "started")


def retry(core: Core, connection: Connection, message: Message) -> None:
    def again(job: Job) -> None:
        after = tuple(id for id in job.after if (other := core.queue.get(id)) is not None and not other.over)
        anew, _ = jobs.step(
            job, "retry", core.now(), added=core.since(), place=None, tries=0, peak_memory=None, after=after,
            exit_code=None, signal=None, why=None, ended=None, out_of_memory=False,
        )  # fmt: skip
        core.queue.change(anew, job)

    _each(core, connection, message, jobs.ENDS, again, "run again")


def edit(core: Core, connection: Connection, message: Message) -> None:
    """All of them, or none if one of the changes is not right."""
    found, fitting = _fitting(core, connection, message, WAITING, "edited")
    for before, job in [(job, edited(core, job, message["changes"])) for job in fitting]:
        core.queue.change(job, before)
    _done(core, connection, fitting, _others(found, WAITING, message))


def clean(core: Core, connection: Connection, message: Message) -> None:
    select = message.get("select") or {}
    try:
        found = chosen(core, connection, select, jobs.ENDS)
    except NotFound:
        if select.get("ids"):
            raise
        found = []
    over = [job for job in found if job.over]
    core.queue.endings.forget(over)
    _done(core, connection, over)


def set_parameter(core: Core, connection: Connection, message: Message) -> None:
    if message.get("name") is not None:
        name = settings.find(message["name"])
        if message.get("value") is not None:
            _set(core, connection, name, message["value"])
    rows = settings.shown(core.settings, core.policy, core.texts)
    if message.get("name") is not None:
        rows = [entry for entry in rows if entry["name"] == name]
    core.edge.send(connection, {"ok": {"parameters": rows}})


def _set(core: Core, connection: Connection, name: str, text: str) -> None:
    if not core.edge.manages(connection.uid):
        raise NotPermitted("Only root and the user who runs the broker may set parameters.", "Ask one of them.")
    if text == "default":
        core.commit([Change("settings", name, None)], [], durable=True)
        core.texts.pop(name, None)
    else:
        settings.parse(name, text)
        core.commit([Change("settings", name, {"text": text})], [], durable=True)
        core.texts[name] = text
    core.use_settings()


JOB_VERBS: dict[str, Callable[[Core, Connection, Message], None]] = {
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
    "wait": wait,
    "set": set_parameter,
}
