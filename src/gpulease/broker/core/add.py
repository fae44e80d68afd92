"""Queueing jobs, one or a hundred thousand; and changing jobs that have not started."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from gpulease.broker.core import bulk, caps, jobs, notices
from gpulease.broker.core.dependencies import predecessors
from gpulease.broker.core.events import AddProgress, Received
from gpulease.broker.core.instructions import Continue
from gpulease.broker.core.limits import allowance, check_jobs, request_of, time_limit
from gpulease.broker.core.state.jobs import size_of
from gpulease.broker.core.transfer import IN_MOVE
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Batch, BatchParts, BatchRange, PendingBatch
from gpulease.errors import NotPermitted, TooMuch, UsageError
from gpulease.model import fields
from gpulease.model import jobs as model_jobs
from gpulease.model.job_selection import line_id, ranges
from gpulease.model.jobs import Job, JobSpec
from gpulease.model.peer import Peer
from gpulease.model.quantities import matching
from gpulease.model.values import Request
from gpulease.protocol import messages
from gpulease.protocol.messages import AddRequest, Fields, More, RetryRequest

MAX_JOBS = 1_000_000  # of one broker that are not over
MAX_OF_USER = 500_000  # of one user
MAX_BYTES = 64 << 20  # characters of the batches that one user is sending
MAX_WORDS = 2_000_000  # words and texts of them: each costs memory, be it empty
MAX_ENVIRONMENTS = 512 << 20  # bytes of the variables of one user's jobs; those that are alike are kept once
A_PART = 16  # words that a part counts for, be it empty
BATCHES = 31  # whose tokens are remembered of each user, beside the newest
ENVIRONMENT_BYTES = 512 << 10
PIECE = 200  # jobs that are added in one turn
LINKS = 20_000  # to jobs that they come after


def add(turn: Turn, event: Received[AddRequest]) -> None:
    """A batch may come in parts; when the last has come all are added, a piece in each turn, and then it is answered.

    With a token of the client's choice it may be sent again, when the broker ended before it answered.
    """
    state, peer = turn.state, event.peer
    message = event.message
    if isinstance(event.progress, AddProgress):
        return _add_piece(turn, event, event.progress)
    token = f"{peer.uid} {message['token']}" if message.get("token") else None
    under_way = {one.token for one in state.jobs.adding.values()} - {None}
    if token in under_way and not message.get("more"):
        return turn.emit(Continue(event))  # the same batch came before, by another connection: answered when it is in
    parts = _gathered(turn, event)
    if parts is None:
        return turn.reply(peer, More(more=True))
    check_user(turn, peer)
    begun = state.jobs.batches.get(token or "")
    if begun is not None and begun.next > begun.last:
        return turn.reply(peer, messages.Added(first=begun.first, last=begun.last, left_out=[]))
    check_numbers(turn, peer, sum(map(len, parts.commands)) if begun is None else begun.last + 1 - begun.next)
    options = message["options"]
    request = _in_own_time(turn, request_of(turn, peer, message["request"], bool(options.get("hold"))))
    key, environ, left_out = _environment_of(turn, peer.uid, options)
    first = state.jobs.number + 1 if begun is None else begun.first
    batch = _make(turn, peer, parts, request, key, options, first)
    _keep_environment(turn, peer, key, environ)
    caps.begin(turn, next(batch.jobs(batch.first, batch.first + 1)), batch.last)
    state.jobs.adding.put(peer, PendingBatch(token, key, batch.last + 1 - batch.first))
    state.jobs.gather(peer, BatchParts(size=parts.size, words=parts.words))  # counted until all of them are in
    short: Received[Any] = event  # without what is kept in `batch`
    short = short._replace(message={"do": "add"})
    return _add_piece(turn, short, AddProgress(batch, token, first if begun is None else begun.next, left_out))


def renew_environment(turn: Turn, event: Received[RetryRequest], again: list[Job]) -> str | None:
    """The key of the variables that a user gives to jobs of their own that are run again; None: they keep theirs."""
    message = event.message
    peer, options = event.peer, message.get("options")
    if options is None or not any(job.uid == peer.uid for job in again):
        return None
    key, environ, _ = _environment_of(turn, peer.uid, options)
    _keep_environment(turn, peer, key, environ)
    return key


def _environment_of(turn: Turn, uid: int, options: Fields) -> tuple[str, dict[str, str], list[str]]:
    """Its key in the store, itself, and the names of what is left out of it: secrets, unless their user named them."""
    environ, kept = options.get("environment"), options.get("env_kept") or []
    if not isinstance(kept, list):
        raise UsageError("Invalid list of variables to keep.", "Give a list of names.")
    if not isinstance(environ, dict) or not all(isinstance(v, str) for pair in environ.items() for v in pair):
        raise UsageError("Invalid environment for the job.")
    left_out = [name for name in matching(environ, turn.state.settings.env_exclude) if name not in kept]
    environ = {name: value for name, value in environ.items() if name not in left_out}
    text = "\0".join(f"{name}={value}" for name, value in sorted(environ.items()))
    if len(text) > ENVIRONMENT_BYTES:
        raise UsageError(
            f"The environment has more than {ENVIRONMENT_BYTES >> 10} KiB.", "Queue it from a smaller one."
        )
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{uid}.{digest}", environ, left_out


def _keep_environment(turn: Turn, peer: Peer, key: str, environ: dict[str, str]) -> None:
    state = turn.state
    if state.store.get("environments", key) is not None:
        return
    if state.jobs.environments.get(peer.uid, 0) + size_of(environ) > MAX_ENVIRONMENTS:
        raise TooMuch(
            f"The variables of your jobs take more than {MAX_ENVIRONMENTS >> 20} MiB: many have values of their own.",
            "Forget ended jobs with `gpulease clean`, or leave variables out with `no-env`.",
        )
    state.jobs.keep_environment(peer.uid, key, environ)


def _add_piece(turn: Turn, event: Received[Any], adding: AddProgress) -> None:
    """Some of them."""
    state, peer, batch = turn.state, event.peer, adding.batch
    end = min(adding.next + max(1, min(bulk.size(event, PIECE), LINKS // (1 + len(batch.after)))), batch.last + 1)
    jobs.advance_batch(turn, batch, adding.next, end)
    state.jobs.add_batch(BatchRange(batch.first, batch.last, end), adding.token, peer.uid, BATCHES)
    if end <= batch.last:
        state.jobs.adding.put(peer, state.jobs.adding[peer]._replace(left=batch.last + 1 - end))
        return turn.emit(Continue(event._replace(progress=adding._replace(next=end))))
    state.jobs.adding.drop(peer)
    state.jobs.gather(peer, None)
    added = ranges(range(batch.first, batch.last + 1))
    state.record(turn.now, "added", id=line_id(batch.first), kind="job", user=peer.user, why=f"job {added}")
    return turn.reply(peer, messages.Added(first=batch.first, last=batch.last, left_out=adding.left_out))


def check_numbers(turn: Turn, user: Peer | Job, number: int) -> None:
    """Raise if this many more unfinished jobs are too many for the user or the broker. Jobs being added count too."""
    state, coming = turn.state, turn.state.jobs.adding.items()
    there = state.jobs.open.get(user.uid, 0) + sum(batch.left for peer, batch in coming if peer.uid == user.uid)
    of_all = sum(state.jobs.counts.get(one, 0) for one in model_jobs.OPEN) + sum(batch.left for _, batch in coming)
    if of_all + number > MAX_JOBS:
        raise TooMuch(f"More than {MAX_JOBS} jobs would wait.", "Let some of them end first.")
    if there + number > MAX_OF_USER:
        raise TooMuch(f"You would have more than {MAX_OF_USER} jobs that wait.", "Let some of them end first.")
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
    if not peer.account.exists:
        raise NotPermitted(f"User {peer.uid} has no account here, so the broker cannot {deed} it.", "Have one made.")


def _gathered(turn: Turn, event: Received[AddRequest]) -> BatchParts | None:
    """All parts of a batch, once the last has come."""
    state, peer = turn.state, event.peer
    message = event.message
    before = state.jobs.parts.get(peer, BatchParts())
    same: dict[str, str] = {}  # commands of a batch have most words in common, and are kept until all are queued
    commands = [tuple(same.setdefault(one, one) for one in fields.command(it)) for it in message["commands"]]
    each = message.get("each") or []
    texts = [*commands, *(one.values() for one in each)]
    parts = BatchParts(
        (*before.commands, commands),
        (*before.each, each),
        before.size + sum(sum(map(len, words)) for words in texts),
        before.words + A_PART + sum(1 + len(words) for words in texts),
    )
    try:
        _check_size(turn, peer, parts)
    except TooMuch:
        state.jobs.gather(peer, None)
        raise
    if message.get("more"):
        state.jobs.gather(peer, parts)
        return None
    number, texts_of_own = sum(map(len, parts.commands)), sum(map(len, parts.each))
    if not number:
        raise UsageError("No command was given.", "Write it behind `--`, or one a line in a `file`.")
    if texts_of_own and texts_of_own != number:
        raise UsageError("Some commands have a name, label, note or log of their own, and others have none.")
    return parts


def _check_size(turn: Turn, peer: Peer, parts: BatchParts) -> None:
    others = [one for who, one in turn.state.jobs.parts.items() if who.uid == peer.uid and who is not peer]
    if parts.size + sum(one.size for one in others) > MAX_BYTES:
        raise TooMuch(f"You are adding more than {MAX_BYTES >> 20} MiB of commands at once.", "Divide them.")
    if parts.words + sum(one.words for one in others) > MAX_WORDS:
        raise TooMuch(f"You are adding more than {MAX_WORDS} words of commands at once.", "Divide them.")


def _make(
    turn: Turn, peer: Peer, parts: BatchParts, request: Request, environ: str, options: Fields, first: int
) -> Batch:
    """All alike but for id, command, log, the moment of arrival, and the texts that are in `each`."""
    now = turn.state.requests.since(turn.now)
    said = _read(turn, peer, options, {"cwd": None, "time_limit": None})
    if not options.get("hold"):
        said.pop("transfer", None)
    after = predecessors(turn, peer.uid, options, first, sum(map(len, parts.commands)))
    spec = JobSpec(
        command=(),
        environment=environ,
        request=request,
        after=after,
        after_any=bool(options.get("after_any")),
        **said,
    )
    alike = Job(first, peer.uid, peer.user, spec, now, model_jobs.NEW, met=_met(turn, after))
    if spec.transfer is not None:
        alike = alike._replace(why=IN_MOVE)
    if spec.at_most is not None and sum(map(len, parts.commands)) > 1:
        alike = alike._replace(cap=first)
    alike, effects = model_jobs.step(alike, "add-held" if options.get("hold") else "add", now)
    commands = [words for part in parts.commands for words in part]
    each = [texts for part in parts.each for texts in part]
    log = _log_of(turn, peer, options, len(commands))
    batch = Batch(alike, effects, commands, log, _own_texts(options, each, first))
    turn.state.requests.since(batch.arrival)
    return batch


def _log_of(turn: Turn, peer: Peer, options: Fields, count: int) -> Callable[[int], str]:
    """Where the output of each job of a batch goes, by its id."""
    asked = _log_asked(options)
    if asked is None:
        return lambda id: jobs.default_log(turn, peer.uid, id)
    return _log_at(options, asked, count == 1)


def _log_at(options: Fields, asked: str, alone: bool) -> Callable[[int], str]:
    """A client says by a slash at its end that a path is a folder: the broker looks at nobody's disk."""
    path = os.path.join(str(options["cwd"]), asked)
    if asked.endswith("/"):
        return lambda id: os.path.join(path, f"{id}.log")
    return lambda id: path if alone else f"{path}.{id}"


def _log_asked(options: Mapping[str, object]) -> str | None:
    return None if options.get("log") is None else str(fields.TEXT.check(options["log"], "--log"))


def _own_texts(options: Fields, each: list[dict[str, str]], first: int) -> list[dict[str, Any]]:
    """The name, label, note and log that a job of a batch has of its own."""
    logs = Counter(texts.get("log") for texts in each)
    return [_own(options, texts, id, logs[texts.get("log")] == 1) for id, texts in enumerate(each, first)]


def _own(options: Fields, texts: dict[str, str], id: int, alone: bool) -> dict[str, Any]:
    strange = sorted(set(texts) - set(fields.OWN))
    if strange or texts.get("log") == "":
        raise UsageError(f"A command cannot have such a {(strange or ['log'])[0][:40]!r} of its own.")
    found = fields.kept(fields.JOB, texts, {})
    return found if "log" not in texts else {**found, "log": _log_at(options, _log_asked(texts) or "", alone)(id)}


def _read(turn: Turn, user: Peer | Job, options: Fields, needed: Fields) -> dict[str, Any]:
    """The fields of a job that are in `options`, or needed, checked as from a stranger."""
    found = fields.kept(fields.JOB, {**needed, **options}, JobSpec._field_defaults)
    if "time_limit" in found:
        limit = allowance(turn.state, user.user, turn.world.groups_of(user.uid))
        found["time_limit"] = time_limit(limit, found["time_limit"])
    if found.get("notify"):
        notices.check_address(turn, user.uid)
    return found


def _met(turn: Turn, after: tuple[int, ...]) -> tuple[int, ...]:
    """The jobs that have ended already. The caller has checked that they ended as required."""
    return tuple(id for id, state in turn.state.jobs.states(after).items() if state not in model_jobs.OPEN)


def edited(turn: Turn, job: Job, changes: Fields, sweep: int | None = None) -> dict[str, Any]:
    """What `changes` make other about a job that waits or is held; `sweep` is that of jobs that are in none."""
    strange = sorted(set(changes) - fields.EDITABLE)
    if strange:
        raise UsageError(f"A job has no {strange[0][:40]!r} that can be changed.", "See `gpulease edit --help`.")
    found = _read(turn, job, changes, {})
    if "command" in found:
        found |= {"script": None, "script_time": None}  # of the command before
    if "after" in changes:
        found["after"] = predecessors(turn, job.uid, changes, job.id)
        found["after_any"] = bool(changes.get("after_any"))
        found["met"] = _met(turn, found["after"])
    if "at_most" in found:
        found["cap"] = caps.edited(job, sweep)
    if "request" in changes:
        found["request"] = _edited_request(turn, job, changes["request"])
    return found


def _edited_request(turn: Turn, job: Job, changes: object) -> Request:
    if not isinstance(changes, dict):
        raise UsageError("Invalid change of the request.")
    kept = {name: value for name, value in job.spec.request._asdict().items() if value not in (None, ())}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    request = request_of(turn, job, {**kept, **changes}, job.state == "held")
    return _in_own_time(turn, request) if "not_before" in changes else request


def _in_own_time(turn: Turn, request: Request) -> Request:
    """Clients name a time of the wall clock. One that was given as `in 2h` is kept in the broker's time."""
    if request.not_before is None or not request.relative:
        return request
    return request._replace(not_before=request.not_before - turn.state.requests.wall_ahead)
