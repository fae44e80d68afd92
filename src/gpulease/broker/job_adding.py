"""Queueing jobs, one or a hundred thousand, in one commit; and changing those that have not started."""

from __future__ import annotations

import os

from gpulease import identity
from gpulease import job as jobs
from gpulease.broker import job_options as given
from gpulease.broker.batch import Batch
from gpulease.broker.connection import Connection
from gpulease.broker.core import Core
from gpulease.errors import NotPermitted, TooMuch, UsageError
from gpulease.job import Job
from gpulease.messages import Message
from gpulease.model import Request

MOST_JOBS = 1_000_000  # of one broker that are not over
MOST_BYTES = 64 << 20  # of one batch
MOST_RETRIES = 1000
TEXTS, PATHS = {"name", "label", "note"}, {"cwd", "log"}
EDITABLE = TEXTS | PATHS | {"retry", "time_limit", "command", "after", "after_any", "request"}


def add(core: Core, connection: Connection, message: Message) -> None:
    """A batch may come in parts; the last part adds all of them at once.

    With a token of the client's choice it may be sent again, when the broker ended before it answered.
    """
    gathered = _gathered(connection, message)
    if gathered is None:
        return core.edge.send(connection, {"ok": {"more": True}})
    commands, each = gathered
    _check_user(core, connection)
    token = f"{connection.uid} {message['token']}" if message.get("token") else None
    if token is not None and token in core.queue.batches:
        first, last = core.queue.batches[token]
        return core.edge.send(connection, {"ok": {"first": first, "last": last}})
    if core.counts_open() + len(commands) > MOST_JOBS:
        raise TooMuch(f"More than {MOST_JOBS} jobs would wait.", "Let some of them end first.")
    options = message["options"]
    request = given.request_of(core, message["request"], bool(options.get("hold")))
    environ = given.environment_of(options.get("environment"))
    made = _make(core, connection, commands, each, request, environ[0], options)
    core.queue.add(made, environ, token)
    core.since_at_least(made.arrival)
    core.edge.send(connection, {"ok": {"first": made.first, "last": made.last}})


def _check_user(core: Core, connection: Connection) -> None:
    """Only root can become another user; a shared broker says so even where root runs it."""
    about = core.edge.about()
    allowed = (os.geteuid(),) if about["kind"] == "shared" else (os.geteuid(), connection.uid)
    if connection.uid not in allowed or (os.geteuid() != 0 and connection.uid != os.geteuid()):
        raise NotPermitted(
            f"The broker of {about['user']} cannot run jobs as another user.",
            "Use `gpulease run`, or ask for a system broker (`gpulease broker --system`, as root).",
        )
    if connection.uid != os.geteuid() and not identity.has_account(connection.uid):
        raise NotPermitted(f"User {connection.uid} has no account here, so no job can run as it.", "Have one made.")


def _gathered(connection: Connection, message: Message) -> tuple[list[list[str]], list[dict[str, str]]] | None:
    each = message.get("each") or []
    connection.bytes += sum(sum(map(len, words)) for words in message["commands"])
    connection.bytes += sum(sum(map(len, texts.values())) for texts in each)
    connection.parts += message["commands"]
    connection.each += each
    too_much = connection.bytes > MOST_BYTES
    if message.get("more") and not too_much:
        return None
    commands, each = connection.parts, connection.each
    connection.parts, connection.each, connection.bytes = [], [], 0
    if too_much:
        raise TooMuch(f"A batch has more than {MOST_BYTES >> 20} MiB of commands.", "Divide it.")
    if not commands:
        raise UsageError("No command was given.", "Write it behind `--`, or one a line with --file.")
    if each and len(each) != len(commands):
        raise UsageError("Some commands have texts of their own, and others have not.")
    return commands, each


def _make(
    core: Core,
    connection: Connection,
    commands: list[list[str]],
    each: list[dict[str, str]],
    request: Request,
    environ: str,
    options: Message,
) -> Batch:
    """All alike but for id, command, log, the moment of arrival, and the texts that are in `each`."""
    first = core.queue.number + 1
    now = core.since()
    alike = Job(
        id=first,
        command=(),
        uid=connection.uid,
        user=connection.user,
        cwd=given.path(options, "cwd"),
        environment=environ,
        request=request,
        added=now,
        state="new",
        name=given.text(options, "name"),
        label=given.text(options, "label"),
        note=given.text(options, "note"),
        retry=given.number(options, "retry", 0, MOST_RETRIES),
        time_limit=given.seconds(options, "time_limit"),
        after=given.dependencies(core, options, first),
        after_any=bool(options.get("after_any")),
    )
    alike, _ = jobs.step(alike, "add-held" if options.get("hold") else "add", now)
    log = given.log_of(core, connection, options, len(commands))
    return Batch(alike, list(map(given.without_zero, commands)), log, given.own_texts(options, each, first))


def edited(core: Core, job: Job, changes: Message) -> Job:
    """A job that waits or is held, as `changes` want it."""
    strange = sorted(set(changes) - EDITABLE)
    if strange:
        raise UsageError(f"A job has no {strange[0][:40]!r} that can be changed.", "See `gpulease edit --help`.")
    fields: Message = {name: given.text(changes, name) for name in TEXTS & set(changes)}
    for name in PATHS & set(changes):
        fields[name] = given.path(changes, name)
    if "retry" in changes:
        fields["retry"] = given.number(changes, "retry", 0, MOST_RETRIES)
    if "time_limit" in changes:
        fields["time_limit"] = given.seconds(changes, "time_limit")
    if "command" in changes:
        fields["command"] = given.command(changes["command"])
    if "after" in changes:
        fields["after"] = given.dependencies(core, changes, job.id)
        fields["after_any"] = bool(changes.get("after_any"))
    if "request" in changes:
        fields["request"] = _edited_request(core, job, changes["request"])
    return job._replace(**fields)


def _edited_request(core: Core, job: Job, changes: object) -> Request:
    if not isinstance(changes, dict):
        raise UsageError("The changed request is not right.")
    kept = {name: value for name, value in job.request._asdict().items() if value not in (None, ())}
    kept = {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()}
    return given.request_of(core, {**kept, **changes}, job.state == "held")
