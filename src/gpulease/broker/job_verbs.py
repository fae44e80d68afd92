"""What each request about jobs does. One function a verb; each acts on one's own jobs, root's on all."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from gpulease import job as jobs
from gpulease.broker import settings
from gpulease.broker.connection import Connection
from gpulease.broker.core import Core
from gpulease.errors import NotEnoughDevices, NotFound, NotPermitted, TooMuch, UsageError
from gpulease.job import Job
from gpulease.messages import Message, read_request
from gpulease.model import Request
from gpulease.planner import Line, plan
from gpulease.planner.reasons import IMPOSSIBLE
from gpulease.selection import find
from gpulease.stores.base import Change

MOST_JOBS = 1_000_000  # of one broker that are not over
MOST_BYTES = 64 << 20  # of one batch
ENVIRONMENT_BYTES = 512 << 10
SHOWN = 50

# ---------------------------------------------------------------------- adding


def add(core: Core, connection: Connection, message: Message) -> None:
    """A batch may come in parts; the last part adds all of them at once."""
    commands = _gathered(connection, message)
    if commands is None:
        return core.edge.send(connection, {"ok": {"more": True}})
    if core.edge.about()["kind"] == "shared" and connection.uid != os.geteuid():
        raise NotPermitted(
            "The shared broker cannot run jobs as another user.",
            "Use `gpulease run`, or ask for a system broker (`gpulease broker --system`, as root).",
        )
    if core.counts_open() + len(commands) > MOST_JOBS:
        raise TooMuch(f"More than {MOST_JOBS} jobs would wait.", "Let some of them end first.")
    options = message["options"]
    request = _request(core, message["request"], bool(options.get("hold")))
    environ = _environment(options.get("environment"))
    made = _make(core, connection, commands, request, environ[0], options)
    core.queue.add(made, environ)
    core.edge.send(connection, {"ok": {"first": made[0].id, "last": made[-1].id}})


def _gathered(connection: Connection, message: Message) -> list[list[str]] | None:
    parts = connection.parts
    connection.bytes += sum(len(word) for words in message["commands"] for word in words)
    if connection.bytes > MOST_BYTES:
        parts.clear()
        connection.bytes = 0
        raise TooMuch(f"A batch has more than {MOST_BYTES >> 20} MiB of commands.", "Divide it.")
    parts += message["commands"]
    if message.get("more"):
        return None
    gathered, connection.parts, connection.bytes = list(parts), [], 0
    if not gathered:
        raise UsageError("No command was given.", "Write it behind `--`, or one a line with --file.")
    return gathered


def _request(core: Core, fields: Message, hold: bool) -> Request:
    request = read_request(fields)
    devices = list(core.devices.values())
    request = request._replace(
        devices=tuple(find(name, devices).uuid for name in request.devices),
        exclude=tuple(find(name, devices).uuid for name in request.exclude),
    )
    trouble = None if hold else impossible(core, request)
    if trouble is not None:
        raise NotEnoughDevices(trouble, "Ask for less, or queue it all the same with --hold.")
    return request


def impossible(core: Core, request: Request) -> str | None:
    """Why a request can never be granted here; None when it can."""
    if core.sample is None:
        return None
    line = Line(core.policy)
    line.add(jobs_waiting(request))
    decided = plan(core.devices.values(), (), line, core.policy, core.now())
    if decided.grants:
        return None
    reason = decided.reason("probe")
    return reason.sentence if reason.code == IMPOSSIBLE else None


def jobs_waiting(request: Request) -> Any:
    from gpulease.model import Waiting

    return Waiting("probe", request._replace(not_before=None), "", 0, 0.0, (), "job")


def _environment(environ: object) -> tuple[str, dict[str, str]]:
    if not isinstance(environ, dict) or not all(isinstance(v, str) for pair in environ.items() for v in pair):
        raise UsageError("The environment of the job is not right.")
    text = "\0".join(f"{name}={value}" for name, value in sorted(environ.items()))
    if len(text) > ENVIRONMENT_BYTES:
        raise UsageError(
            f"The environment has more than {ENVIRONMENT_BYTES >> 10} KiB.", "Queue it from a smaller one."
        )
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest(), environ


def _make(
    core: Core, connection: Connection, commands: list[list[str]], request: Request, environ: str, options: Message
) -> list[Job]:
    after = _dependencies(core, connection, options)
    first = core.queue.number + 1
    now = core.since()
    made = []
    for offset, words in enumerate(commands):
        id = first + offset
        job = Job(
            id=id,
            command=tuple(words),
            uid=connection.uid,
            user=connection.user,
            cwd=_text(options, "cwd") or "/",
            environment=environ,
            request=request,
            added=now + offset * 1e-6,
            name=_text(options, "name"),
            label=_text(options, "label"),
            note=_text(options, "note"),
            log=_log(core, connection, options, id, len(commands)),
            retry=_number(options, "retry", 0, 1000),
            time_limit=options.get("time_limit"),
            after=after,
            after_any=bool(options.get("after_any")),
        )
        made.append(jobs.step(job._replace(state="new"), "add-held" if options.get("hold") else "add", now)[0])
    core.since_at_least(now + len(commands) * 1e-6)
    return made


def _dependencies(core: Core, connection: Connection, options: Message) -> tuple[int, ...]:
    after = options.get("after") or []
    if not isinstance(after, list) or not all(isinstance(id, int) for id in after) or len(after) > 1000:
        raise UsageError("The list of jobs to come after is not right.", "Write ids, as --after 3,4.")
    for id in after:
        other = core.queue.get(id)
        if other is None:
            what = "a job cannot come after itself" if id == core.queue.number + 1 else "there is no such job"
            raise NotFound(f"It is to come after job {id}, but {what}.", "See the ids with `gpulease ls --all`.")
        if other.over and other.state != "complete" and not options.get("after_any"):
            raise UsageError(
                f"Job {id} is {other.state}, so nothing can come after it.", "Use --after-any, or retry it."
            )
    return tuple(after)


def _log(core: Core, connection: Connection, options: Message, id: int, count: int) -> str:
    asked = _text(options, "log")
    if asked is None:
        return core.queue.default_log(connection.uid, id)
    path = os.path.join(_text(options, "cwd") or "/", asked)
    if asked.endswith("/") or os.path.isdir(path):
        return os.path.join(path, f"{id}.log")
    return path if count == 1 else f"{path}.{id}"


def _text(options: Message, name: str, most: int = 4096) -> str | None:
    value = options.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > most or "\0" in value:
        raise UsageError(f"The option {name} is not right.")
    return value


def _number(options: Message, name: str, least: int, most: int) -> int:
    value = options.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(f"The option {name} is not right.", f"Give {least} to {most}.")
    return value


# ---------------------------------------------------------------------- choosing


def chosen(core: Core, connection: Connection, select: Message, states: tuple[str, ...] = ()) -> list[Job]:
    """The jobs that a selection names: ids and ranges, all, last, a label, a state. One's own, unless root asks."""
    everyone = connection.uid == 0
    ranges = [(int(first), int(last)) for first, last in select.get("ids") or []]
    uid = None if everyone or ranges else connection.uid
    wanted = (select["state"],) if select.get("state") else states
    last = bool(select.get("last"))
    rows = core.store.jobs(wanted, uid, select.get("label"), ranges, 1 if last else None, last)
    found = [core.queue.running.get(row["id"]) or jobs.read(row) for row in rows]
    if not found:
        raise NotFound("No such job.", "See the ids with `gpulease ls --all`.")
    foreign = [job for job in found if not everyone and job.uid != connection.uid]
    if len(foreign) == len(found):
        raise NotPermitted(f"Job {foreign[0].id} belongs to {foreign[0].user}.", "Only its user or root may do that.")
    return [job for job in found if job not in foreign]


def _done(core: Core, connection: Connection, done: list[Job], skipped: list[str] | None = None) -> None:
    core.edge.send(connection, {"ok": {"ids": [job.id for job in done], "skipped": skipped or []}})


def _each(
    core: Core, connection: Connection, message: Message, states: tuple[str, ...], act: Callable[[Job], None], verb: str
) -> None:
    """Do `act` to each chosen job that is in one of `states`; if none is, say in which it is."""
    found = chosen(core, connection, message["select"])
    fitting = [job for job in found if job.state in states]
    if not fitting:
        raise UsageError(f"Job {found[0].id} is {found[0].state}, so it cannot be {verb}.", "See `gpulease ls`.")
    for job in fitting:
        act(job)
    _done(core, connection, fitting, [f"{job.id} is {job.state}" for job in found if job.state not in states])


# ---------------------------------------------------------------------- looking


def row(core: Core, job: Job, connection: Connection) -> Message:
    hidden = core.settings.hide_commands and connection.uid not in (0, job.uid)
    fields = jobs.document(job)
    for name in ("environment", "history"):
        fields.pop(name)
    waits = job.state == "waiting" and job.planner_id in core.line
    fields["why_waiting"] = core.why(job.planner_id) if waits else None
    if hidden:
        fields.update(command=["(hidden)"], cwd="", log="", name=None, note=None)
    return fields


def ls(core: Core, connection: Connection, message: Message) -> None:
    most = max(1, min(100_000, message.get("most") or SHOWN))
    select = message.get("select")
    if select:
        found = chosen(core, connection, select)[:most]
        return core.edge.send(connection, {"ok": {"jobs": [row(core, j, connection) for j in found], **_counts(core)}})
    shown = sorted(core.queue.running.values())
    waiting = [entry for entry in core.queue.first_waiting(most) if entry.kind == "job"]
    shown += [job for entry in waiting if (job := core.queue.get(int(entry.id[1:]))) is not None]
    shown += [jobs.read(r) for r in core.store.jobs(("held",), most=most)]
    ends = jobs.ENDS
    ended = core.store.jobs(ends, most=most if message.get("all") else min(most, 10), newest=True)
    shown += [jobs.read(r) for r in ended]
    core.edge.send(connection, {"ok": {"jobs": [row(core, job, connection) for job in shown], **_counts(core)}})
    return None


def _counts(core: Core) -> Message:
    return {
        "counts": {state: n for state, n in core.queue.counts.items() if n},
        "paused": core.settings.paused,
        "simulated": bool(core.sample and core.sample.simulated),
    }


def show(core: Core, connection: Connection, message: Message) -> None:
    found = chosen(core, connection, message["select"])
    rows = [row(core, job, connection) for job in found[:1000]]
    if message.get("environment"):
        for shown, job in zip(rows, found, strict=False):
            shown["environment"] = core.store.get("environments", job.environment)
    core.edge.send(connection, {"ok": {"jobs": rows}})


def wait(core: Core, connection: Connection, message: Message) -> None:
    core.queue.watch(connection, chosen(core, connection, message["select"]))


# ---------------------------------------------------------------------- acting


def kill(core: Core, connection: Connection, message: Message) -> None:
    why = f"killed by {connection.user}"
    found = chosen(core, connection, message["select"])
    fitting = [job for job in found if not job.over]
    if not fitting:
        raise UsageError(f"Job {found[0].id} is {found[0].state} already.", "See `gpulease ls --all`.")
    core.queue.end_waiting([job for job in fitting if job.state in ("waiting", "held")], why)
    for job in fitting:
        if job.state in ("running", "paused"):
            core.queue.kill(job, why)
    _done(core, connection, fitting, [f"{job.id} is {job.state}" for job in found if job.over])


def rm(core: Core, connection: Connection, message: Message) -> None:
    found = chosen(core, connection, message["select"])
    why = f"removed by {connection.user}"
    core.queue.end_waiting([job for job in found if job.state in ("waiting", "held")], why)
    for job in found:
        if job.state in ("running", "paused"):
            core.queue.removing.add(job.id)
            core.queue.kill(job, why)
    ids = {job.id for job in found if job.state not in ("running", "paused")}
    core.queue.forget([gone for id in sorted(ids) if (gone := core.queue.get(id)) is not None])
    _done(core, connection, found)


def pause(core: Core, connection: Connection, message: Message) -> None:
    if message.get("queue"):
        return _pause_queue(core, connection, True)
    _each(core, connection, message, ("running",), core.queue.pause, "paused")


def resume(core: Core, connection: Connection, message: Message) -> None:
    if message.get("queue"):
        return _pause_queue(core, connection, False)
    _each(core, connection, message, ("paused", "held"), lambda job: _resume(core, job), "resumed")


def _resume(core: Core, job: Job) -> None:
    if job.state == "paused":
        return core.queue.resume(job)
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
    """To a place among those that wait, 0 being the front; with the priority of who stands there."""
    job = chosen(core, connection, {"ids": [[message["id"], message["id"]]]})[0]
    if job.state != "waiting":
        raise UsageError(f"Job {job.id} is {job.state}, so it has no place in the line.", "See `gpulease ls`.")
    index = max(0, message.get("index") or 0)
    others = [entry for entry in core.queue.first_waiting(index + 3) if entry.id != job.planner_id]
    before, behind = others[index - 1 : index] if index else [], others[index : index + 1]
    places = [entry.since if entry.place is None else entry.place for entry in before + behind]
    if not places:
        place, priority = job.added, job.request.priority
    else:
        priority = (behind or before)[0].request.priority
        same = bool(before and behind and before[0].request.priority == priority)
        place = sum(places) / 2 if same else places[-1] - 1e-3 if behind else places[-1] + 1e-3
    moved = job._replace(place=place, request=job.request._replace(priority=priority))
    core.queue.change(moved, job)
    _done(core, connection, [job])


def start(core: Core, connection: Connection, message: Message) -> None:
    def force(job: Job) -> None:
        waiting = jobs.step(job, "let-go", core.now())[0] if job.state == "held" else job
        request = waiting.request._replace(not_before=None)
        core.queue.change(waiting._replace(forced=True, after=(), request=request), job)

    _each(core, connection, message, ("waiting", "held"), force, "started")


def retry(core: Core, connection: Connection, message: Message) -> None:
    def again(job: Job) -> None:
        anew = jobs.step(job, "retry", core.now(), added=core.since(), place=None, tries=0, peak_memory=None)[0]
        core.queue.change(anew, job)

    _each(core, connection, message, jobs.ENDS, again, "run again")


EDITABLE = {"name", "label", "note", "log", "cwd"}


def edit(core: Core, connection: Connection, message: Message) -> None:
    changes = message["changes"]

    def apply(job: Job) -> None:
        fields: Message = {name: _text(changes, name) for name in EDITABLE & set(changes)}
        if "retry" in changes:
            fields["retry"] = _number(changes, "retry", 0, 1000)
        if "time_limit" in changes:
            fields["time_limit"] = changes["time_limit"]
        if "command" in changes:
            fields["command"] = tuple(str(word) for word in changes["command"])
        if "request" in changes:
            kept = {name: value for name, value in job.request._asdict().items() if value not in (None, ())}
            kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
            fields["request"] = _request(core, {**kept, **changes["request"]}, False)
        core.queue.change(job._replace(**fields), job)

    _each(core, connection, message, ("waiting", "held"), apply, "edited")


def clean(core: Core, connection: Connection, message: Message) -> None:
    select = message.get("select") or {}
    try:
        found = chosen(core, connection, select, jobs.ENDS)
    except NotFound:
        found = []
    over = [job for job in found if job.over]
    core.queue.forget(over)
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
