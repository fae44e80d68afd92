"""Queueing jobs, one or a hundred thousand, in one commit; and changing those that have not started."""

from __future__ import annotations

from gpulease import job as jobs
from gpulease.broker import job_input as given
from gpulease.broker import job_life
from gpulease.broker.allowances import allowance, check_jobs, time_limit
from gpulease.broker.batch import Batch
from gpulease.broker.core_state import Parts
from gpulease.broker.events import Received
from gpulease.broker.peer import Peer
from gpulease.broker.turn import Turn
from gpulease.errors import NotPermitted, TooMuch, UsageError
from gpulease.job import Job
from gpulease.messages import Message
from gpulease.model import Request

MOST_JOBS = 1_000_000  # of one broker that are not over
MOST_BYTES = 64 << 20  # of one batch
MOST_RETRIES = 1000
BATCHES = 31  # whose tokens are remembered, beside the newest
TEXTS, PATHS = {"name", "label", "note"}, {"cwd", "log"}
EDITABLE = TEXTS | PATHS | {"retry", "time_limit", "command", "after", "after_any", "request"}


def add(turn: Turn, event: Received) -> None:
    """A batch may come in parts; the last part adds all of them at once.

    With a token of the client's choice it may be sent again, when the broker ended before it answered.
    """
    state, peer, message = turn.state, event.peer, event.message
    gathered = _gathered(turn, event)
    if gathered is None:
        return turn.reply(peer, more=True)
    commands, each = gathered
    _check_user(turn, peer)
    token = f"{peer.uid} {message['token']}" if message.get("token") else None
    if token is not None and token in state.batches:
        first, last = state.batches[token]
        return turn.reply(peer, first=first, last=last)
    if sum(state.counts.get(one, 0) for one in jobs.OPEN) + len(commands) > MOST_JOBS:
        raise TooMuch(f"More than {MOST_JOBS} jobs would wait.", "Let some of them end first.")
    options, limit = message["options"], allowance(state, peer.user, turn.world.groups_of(peer.uid))
    check_jobs(limit, state.open_jobs.get(peer.uid, 0), len(commands))
    request = given.request_of(turn, peer, message["request"], bool(options.get("hold")))
    environ = given.environment_of(options.get("environment"))
    batch = _make(turn, peer, commands, each, request, environ[0], options)
    _add(turn, batch, environ, token)
    return turn.reply(peer, first=batch.first, last=batch.last)


def _add(turn: Turn, batch: Batch, environment: tuple[str, Message], token: str | None) -> None:
    """All of them, in one commit, or none: the table's effects, once for what is alike."""
    state = turn.state
    state.store.write("environments", *environment)
    state.add_batch(batch.first, batch.last, token, BATCHES)
    for id, document in batch.documents():
        state.store.write("jobs", str(id), document)
    state.count(batch.uid, None, batch.state, len(batch))
    if "join-line" in batch.effects:
        for job in batch:
            job_life.join(turn, job)
    if state.subscribers:
        for job in batch:
            turn.job_changed(job.id, jobs.NEW, job)


def _check_user(turn: Turn, peer: Peer) -> None:
    """Only root can become another user; a shared broker says so even where root runs it."""
    about = turn.state.about
    if peer.uid == about.uid:
        return
    if about.kind == "shared" or about.uid != 0:
        raise NotPermitted(
            f"The broker of {about.user} cannot run jobs as another user.",
            "Use `gpulease run`, or ask for a system broker (`gpulease broker --system`, as root).",
        )
    if not turn.world.has_account(peer.uid):
        raise NotPermitted(f"User {peer.uid} has no account here, so no job can run as it.", "Have one made.")


def _gathered(turn: Turn, event: Received) -> tuple[list[list[str]], list[dict[str, str]]] | None:
    """All parts of a batch, once the last has come."""
    message, state = event.message, turn.state
    before = state.parts.get(event.peer, Parts())
    each = message.get("each") or []
    size = sum(sum(map(len, words)) for words in message["commands"])
    size += before.size + sum(sum(map(len, texts.values())) for texts in each)
    parts = Parts((*before.commands, message["commands"]), (*before.each, each), size)
    too_much = size > MOST_BYTES
    if message.get("more") and not too_much:
        state.gather(event.peer, parts)
        return None
    state.gather(event.peer, None)
    commands, texts = [one for part in parts.commands for one in part], [one for part in parts.each for one in part]
    if too_much:
        raise TooMuch(f"A batch has more than {MOST_BYTES >> 20} MiB of commands.", "Divide it.")
    if not commands:
        raise UsageError("No command was given.", "Write it behind `--`, or one a line with --file.")
    if texts and len(texts) != len(commands):
        raise UsageError("Some commands have texts of their own, and others have not.")
    return commands, texts


def _make(
    turn: Turn,
    peer: Peer,
    commands: list[list[str]],
    each: list[dict[str, str]],
    request: Request,
    environ: str,
    options: Message,
) -> Batch:
    """All alike but for id, command, log, the moment of arrival, and the texts that are in `each`."""
    first = turn.state.job_number + 1
    now = turn.state.since(turn.now)
    alike = Job(
        id=first,
        command=(),
        uid=peer.uid,
        user=peer.user,
        cwd=given.path(options, "cwd"),
        environment=environ,
        request=request,
        added=now,
        state=jobs.NEW,
        name=given.text(options, "name"),
        label=given.text(options, "label"),
        note=given.text(options, "note"),
        retry=given.number(options, "retry", 0, MOST_RETRIES),
        time_limit=_allowed_time(turn, peer, options),
        after=given.dependencies(turn, options, first),
        after_any=bool(options.get("after_any")),
    )
    alike = alike._replace(met=_met(turn, alike.after))
    alike, effects = jobs.step(alike, "add-held" if options.get("hold") else "add", now)
    log = given.log_of(turn, peer, options, len(commands))
    batch = Batch(alike, effects, list(map(given.without_zero, commands)), log, given.own_texts(options, each, first))
    turn.state.since(batch.arrival)
    return batch


def _allowed_time(turn: Turn, user: Peer | Job, options: Message) -> float | None:
    limit = allowance(turn.state, user.user, turn.world.groups_of(user.uid))
    return time_limit(limit, given.seconds(options, "time_limit"))


def _met(turn: Turn, after: tuple[int, ...]) -> tuple[int, ...]:
    """Those that have ended already; that they ended as they must is checked."""
    found = [(id, turn.state.job(id)) for id in after]
    return tuple(id for id, other in found if other is None or other.over)


def edited(turn: Turn, job: Job, changes: Message) -> Message:
    """What `changes` make other about a job that waits or is held."""
    strange = sorted(set(changes) - EDITABLE)
    if strange:
        raise UsageError(f"A job has no {strange[0][:40]!r} that can be changed.", "See `gpulease edit --help`.")
    fields: Message = {name: given.text(changes, name) for name in TEXTS & set(changes)}
    for name in PATHS & set(changes):
        fields[name] = given.path(changes, name)
    if "retry" in changes:
        fields["retry"] = given.number(changes, "retry", 0, MOST_RETRIES)
    if "time_limit" in changes:
        fields["time_limit"] = _allowed_time(turn, job, changes)
    if "command" in changes:
        fields["command"] = given.command(changes["command"])
    if "after" in changes:
        fields["after"] = given.dependencies(turn, changes, job.id)
        fields["after_any"] = bool(changes.get("after_any"))
        fields["met"] = _met(turn, fields["after"])
    if "request" in changes:
        fields["request"] = _edited_request(turn, job, changes["request"])
    return fields


def _edited_request(turn: Turn, job: Job, changes: object) -> Request:
    if not isinstance(changes, dict):
        raise UsageError("The changed request is not right.")
    kept = {name: value for name, value in job.request._asdict().items() if value not in (None, ())}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    return given.request_of(turn, job, {**kept, **changes}, job.state == "held")
