"""Queueing jobs, one or a hundred thousand; and changing those that have not started."""

from __future__ import annotations

from gpulease.broker.core import caps as capping
from gpulease.broker.core import job_fields as given
from gpulease.broker.core import jobs as job_life
from gpulease.broker.core import notices as noticing
from gpulease.broker.core.batch import Batch
from gpulease.broker.core.dependencies import predecessors
from gpulease.broker.core.events import Adding, Received
from gpulease.broker.core.instructions import GoOn
from gpulease.broker.core.limits import allowance, check_jobs, time_limit
from gpulease.broker.core.state import size_of
from gpulease.broker.core.transfer import IN_MOVE
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Added, Coming, Parts
from gpulease.errors import NotPermitted, TooMuch, UsageError
from gpulease.model import job as jobs
from gpulease.model.job import Job
from gpulease.model.job_selection import ranges
from gpulease.model.peer import Peer
from gpulease.model.values import Request
from gpulease.protocol.messages import Message

MOST_JOBS = 1_000_000  # of one broker that are not over
MOST_OF_USER = 500_000  # of one user
MOST_BYTES = 64 << 20  # characters of the batches that one user is sending
MOST_WORDS = 2_000_000  # words and texts of them: each costs memory, be it empty
MOST_ENVIRONMENTS = 512 << 20  # bytes of the variables of one user's jobs; those that are alike are kept once
A_PART = 16  # words that a part counts for, be it empty
MOST_RETRIES = 1000
BATCHES = 31  # whose tokens are remembered of each user, beside the newest
PIECE = 200  # jobs that are added in one turn
LINKS = 20_000  # to jobs that they come after
TEXTS, PATHS = {"name", "label", "note"}, {"cwd", "log"}
EDITABLE = TEXTS | PATHS | {"retry", "time_limit", "command", "after", "after_any", "after_label", "at_most", "request"}


def add(turn: Turn, event: Received) -> None:
    """A batch may come in parts; when the last has come all are added, a piece in each turn, and then it is answered.

    With a token of the client's choice it may be sent again, when the broker ended before it answered.
    """
    state, peer, message = turn.state, event.peer, event.message
    if isinstance(event.progress, Adding):
        return _add_piece(turn, event, event.progress)
    token = f"{peer.uid} {message['token']}" if message.get("token") else None
    under_way = {one.token for one in state.adding.values()} - {None}
    if token in under_way and not message.get("more"):
        return turn.emit(GoOn(event))  # the same batch came before, by another connection: answered when it is in
    parts = _gathered(turn, event)
    if parts is None:
        return turn.reply(peer, more=True)
    check_user(turn, peer)
    begun = state.batches.get(token or "")
    if begun is not None and begun.next > begun.last:
        return turn.reply(peer, first=begun.first, last=begun.last, left_out=[])
    check_numbers(turn, peer, sum(map(len, parts.commands)) if begun is None else begun.last + 1 - begun.next)
    options = message["options"]
    request = _in_own_time(turn, given.request_of(turn, peer, message["request"], bool(options.get("hold"))))
    key, environ, left_out = given.environment_of(turn, peer.uid, options)
    first = state.job_number + 1 if begun is None else begun.first
    batch = _make(turn, peer, parts, request, key, options, first)
    _keep_environment(turn, peer, key, environ)
    capping.begin(turn, next(batch.jobs(batch.first, batch.first + 1)), batch.last)
    state.adding.put(peer, Coming(token, key, batch.last + 1 - batch.first))
    state.gather(peer, Parts(size=parts.size, words=parts.words))  # counted until all of them are in
    short = event._replace(message={"do": "add"})
    return _add_piece(turn, short, Adding(batch, token, first if begun is None else begun.next, left_out))


def renew_environment(turn: Turn, event: Received, again: list[Job]) -> str | None:
    """The key of the variables that a user gives to jobs of their own that are run again; None: they keep theirs."""
    options, peer = event.message.get("options"), event.peer
    if options is None or not any(job.uid == peer.uid for job in again):
        return None
    key, environ, _ = given.environment_of(turn, peer.uid, options)
    _keep_environment(turn, peer, key, environ)
    return key


def _keep_environment(turn: Turn, peer: Peer, key: str, environ: dict[str, str]) -> None:
    state = turn.state
    if state.store.get("environments", key) is not None:
        return
    if state.environments.get(peer.uid, 0) + size_of(environ) > MOST_ENVIRONMENTS:
        raise TooMuch(
            f"The variables of your jobs take more than {MOST_ENVIRONMENTS >> 20} MiB: many have values of their own.",
            "Forget ended jobs with `gpulease clean`, or leave variables out with `no-env`.",
        )
    state.keep_environment(peer.uid, key, environ)


def _add_piece(turn: Turn, event: Received, adding: Adding) -> None:
    """Some of them: the table's effects, once for what is alike."""
    state, peer, batch = turn.state, event.peer, adding.batch
    end = min(adding.next + max(1, min(PIECE, LINKS // (1 + len(batch.after)))), batch.last + 1)
    for id, document in batch.documents(adding.next, end):
        state.store.write("jobs", str(id), document)
    state.count(peer.uid, None, batch.state, end - adding.next)
    for job in batch.jobs(adding.next, end):
        if "join-line" in batch.effects:
            job_life.join(turn, job)
        if state.subscribers:
            turn.job_changed(job.id, jobs.NEW, job)
    state.add_batch(Added(batch.first, batch.last, end), adding.token, peer.uid, BATCHES)
    if end <= batch.last:
        state.adding.put(peer, state.adding[peer]._replace(left=batch.last + 1 - end))
        return turn.emit(GoOn(event._replace(progress=adding._replace(next=end))))
    state.adding.drop(peer)
    state.gather(peer, None)
    added = ranges(range(batch.first, batch.last + 1))
    state.record(turn.now, "added", id=f"J{batch.first}", kind="job", user=peer.user, why=f"job {added}")
    return turn.reply(peer, first=batch.first, last=batch.last, left_out=adding.left_out)


def check_numbers(turn: Turn, user: Peer | Job, number: int) -> None:
    """Whether so many more of a user's jobs may be there that are not over. What is being added counts as there."""
    state, coming = turn.state, turn.state.adding.items()
    there = state.open_jobs.get(user.uid, 0) + sum(batch.left for peer, batch in coming if peer.uid == user.uid)
    of_all = sum(state.counts.get(one, 0) for one in jobs.OPEN) + sum(batch.left for _, batch in coming)
    if of_all + number > MOST_JOBS:
        raise TooMuch(f"More than {MOST_JOBS} jobs would wait.", "Let some of them end first.")
    if there + number > MOST_OF_USER:
        raise TooMuch(f"You would have more than {MOST_OF_USER} jobs that wait.", "Let some of them end first.")
    check_jobs(allowance(state, user.user, turn.world.groups_of(user.uid)), there, number)


def check_user(turn: Turn, peer: Peer, deed: str = "run jobs as", instead: str = "Use `gpulease run`, or ask") -> None:
    """Only a system broker has agents of other users; its launcher proves who they are."""
    about = turn.state.about
    if peer.uid == about.uid:
        return
    if about.kind != "system":
        raise NotPermitted(
            f"The broker of {about.user} cannot {deed} another user.",
            f"{instead} for a system broker (`gpulease broker --system`, as root).",
        )
    if not turn.world.has_account(peer.uid):
        raise NotPermitted(f"User {peer.uid} has no account here, so the broker cannot {deed} it.", "Have one made.")


def _gathered(turn: Turn, event: Received) -> Parts | None:
    """All parts of a batch, once the last has come."""
    message, state, peer = event.message, turn.state, event.peer
    before = state.parts.get(peer, Parts())
    same: dict[str, str] = {}  # commands of a batch have most words in common, and are kept until all are queued
    commands = [tuple(same.setdefault(one, one) for one in given.without_zero(it)) for it in message["commands"]]
    each = message.get("each") or []
    texts = [*commands, *(one.values() for one in each)]
    parts = Parts(
        (*before.commands, commands),
        (*before.each, each),
        before.size + sum(sum(map(len, words)) for words in texts),
        before.words + A_PART + sum(1 + len(words) for words in texts),
    )
    try:
        _check_size(turn, peer, parts)
    except TooMuch:
        state.gather(peer, None)
        raise
    if message.get("more"):
        state.gather(peer, parts)
        return None
    number, texts_of_own = sum(map(len, parts.commands)), sum(map(len, parts.each))
    if not number:
        raise UsageError("No command was given.", "Write it behind `--`, or one a line in a `file`.")
    if texts_of_own and texts_of_own != number:
        raise UsageError("Some commands have texts of their own, and others have not.")
    return parts


def _check_size(turn: Turn, peer: Peer, parts: Parts) -> None:
    others = [one for who, one in turn.state.parts.items() if who.uid == peer.uid and who is not peer]
    if parts.size + sum(one.size for one in others) > MOST_BYTES:
        raise TooMuch(f"You are adding more than {MOST_BYTES >> 20} MiB of commands at once.", "Divide them.")
    if parts.words + sum(one.words for one in others) > MOST_WORDS:
        raise TooMuch(f"You are adding more than {MOST_WORDS} words of commands at once.", "Divide them.")


def _make(turn: Turn, peer: Peer, parts: Parts, request: Request, environ: str, options: Message, first: int) -> Batch:
    """All alike but for id, command, log, the moment of arrival, and the texts that are in `each`."""
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
        after=predecessors(turn, peer.uid, options, first, sum(map(len, parts.commands))),
        after_any=bool(options.get("after_any")),
        at_most=capping.read(options),
        notify=noticing.read_choice(turn, peer.uid, options.get("notify")),
        transfer=given.text(options, "transfer") if options.get("hold") else None,
        script=given.text(options, "script"),
        script_time=given.number(options, "script_time", 0, 1 << 53) or None,
    )
    if alike.transfer is not None:
        alike = alike._replace(why=IN_MOVE)
    if alike.at_most is not None and sum(map(len, parts.commands)) > 1:
        alike = alike._replace(cap=first)
    alike = alike._replace(met=_met(turn, alike.after))
    alike, effects = jobs.step(alike, "add-held" if options.get("hold") else "add", now)
    commands = [words for part in parts.commands for words in part]
    each = [texts for part in parts.each for texts in part]
    log = given.log_of(turn, peer, options, len(commands))
    batch = Batch(alike, effects, commands, log, given.own_texts(options, each, first))
    turn.state.since(batch.arrival)
    return batch


def _allowed_time(turn: Turn, user: Peer | Job, options: Message) -> float | None:
    limit = allowance(turn.state, user.user, turn.world.groups_of(user.uid))
    return time_limit(limit, given.seconds(options, "time_limit"))


def _met(turn: Turn, after: tuple[int, ...]) -> tuple[int, ...]:
    """Those that have ended already; that they ended as they must is checked."""
    return tuple(id for id, state in turn.state.job_states(after).items() if state not in jobs.OPEN)


def edited(turn: Turn, job: Job, changes: Message, sweep: int | None = None) -> Message:
    """What `changes` make other about a job that waits or is held; `sweep` is that of jobs that are in none."""
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
        fields |= {"script": None, "script_time": None}  # of the command before
    if "after" in changes:
        fields["after"] = predecessors(turn, job.uid, changes, job.id)
        fields["after_any"] = bool(changes.get("after_any"))
        fields["met"] = _met(turn, fields["after"])
    if "at_most" in changes:
        fields |= capping.edited(job, changes, sweep)
    if "request" in changes:
        fields["request"] = _edited_request(turn, job, changes["request"])
    return fields


def _edited_request(turn: Turn, job: Job, changes: object) -> Request:
    if not isinstance(changes, dict):
        raise UsageError("The changed request is not right.")
    kept = {name: value for name, value in job.request._asdict().items() if value not in (None, ())}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    request = given.request_of(turn, job, {**kept, **changes}, job.state == "held")
    return _in_own_time(turn, request) if "not_before" in changes else request


def _in_own_time(turn: Turn, request: Request) -> Request:
    """Clients name a time of the wall clock. One that was given as `in 2h` is kept in the broker's time."""
    if request.not_before is None or not request.relative:
        return request
    return request._replace(not_before=request.not_before - turn.state.wall_ahead)
