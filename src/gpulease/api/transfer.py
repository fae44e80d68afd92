"""Jobs that come from another host's gpulease, as JSON: `gpulease add --transfer` takes them, by this host's checks.

A batch has a token of the sender's choice: the same batch sent twice is queued once. The other two steps of a move are
sent so too: `moved` removes originals that wait as they were copied, `let_go` lets copies start, by their tokens.
"""

from __future__ import annotations

import os
from typing import Any

from gpulease.api.job_commands import folder, own_environment, refuse_unstartable, variables, with_log, without
from gpulease.api.jobs import add
from gpulease.client import connection
from gpulease.errors import BrokerUnavailable, GpuleaseError, UsageError
from gpulease.model.fields import JOB, REQUEST, command_words
from gpulease.model.request import WIRE
from gpulease.protocol.messages import Added, JobRow

LARGEST = 64 << 20  # characters
OF_THE_HOST = ("HOSTNAME", "XDG_RUNTIME_DIR", "DISPLAY")  # variables that say where a process is, and GPULEASE_, SSH_
STEPS = ("moved", "let_go")  # as the broker's requests are called


def received(document: Any) -> dict[str, Any]:
    """Do a step of a move, or queue the batches.

    For each batch the ids of its jobs here; or what is wrong with it, and then none of it is queued.
    """
    try:
        for step in STEPS:
            if step in document:
                return {"added": [], **connection.ask(step, jobs=document[step])}
        return {"added": [_answer(batch) for batch in document["batches"]]}
    except (KeyError, TypeError, AttributeError):
        raise UsageError("What was sent is no batch of jobs.", "Use the same gpulease version on both hosts.") from None


def _answer(batch: dict[str, Any]) -> dict[str, Any]:
    try:
        return {**_queued(batch), "trouble": None}
    except BrokerUnavailable:
        raise  # nobody knows whether it was queued: it is asked again, by its token
    except GpuleaseError as error:
        return {"first": 0, "last": -1, "left_out": [], "trouble": error.what}


def _queued(batch: dict[str, Any]) -> Added:
    commands = [command_words(words) for words in batch["commands"]]
    options: dict[str, Any] = {**with_log(batch["options"]), "cwd": folder(batch["options"]["cwd"])}
    options["environment"] = _environment(batch)
    options["env_kept"] = list(batch.get("env") or ())
    if not batch.get("force"):
        refuse_unstartable(commands, options)
    each = [with_log(texts) for texts in batch.get("each") or ()]
    return add(commands, batch["request"], options, each, token=batch["token"])


def _environment(batch: dict[str, Any]) -> dict[str, str]:
    """That of the job, if it had one already; else this process's, with what was named."""
    given = batch.get("environment")
    if given is None:
        return {**without(own_environment(), batch.get("no_env") or ()), **variables(batch.get("env") or {})}
    moved = {name: value for name, value in variables(given).items() if not _of_the_host(name)}
    return {**moved, **{name: value for name, value in os.environ.items() if _of_the_host(name)}}


def _of_the_host(name: str) -> bool:
    ours = name.startswith("GPULEASE_") and name not in ("GPULEASE_UMASK", "GPULEASE_VISIBLE")
    return ours or name.startswith("SSH_") or name in OF_THE_HOST


def may_move(job: JobRow) -> bool:
    """Whether nothing ties it to its host: jobs that it comes after, a sweep's number, GPUs by name, a run before."""
    tied = any(job["request"].get(row.wire) for row in REQUEST if row.tied) or any(
        job.get(row.wire) for row in JOB if row.tied
    )
    return job["state"] == "waiting" and not job["runs"] and not tied


def batch_of(job: JobRow, token: str) -> dict[str, Any]:
    """A job as it is sent elsewhere, from `gpulease show --environment --json`; held until it is let go there."""
    moved = [row.wire for row in JOB if row.help and not row.apart and not row.tied]
    options: dict[str, Any] = {name: value for name in moved if (value := job.get(name)) not in (None, 0)}
    options |= {"hold": True, "transfer": token}
    log = _log_of(job)
    options |= {} if log is None else {"log": log}
    request = {name: value for name, value in job["request"].items() if name in WIRE and value is not None}
    environment = job.get("environment") or {}
    return {
        "token": token,
        "commands": [job["command"]],
        "request": request,
        "options": options,
        "environment": environment,
        "env": list(environment),  # what it has was kept on its host already
    }


def _log_of(job: JobRow) -> str | None:
    """As it was asked for: a file, a folder, or None for the queue's own place."""
    place, name = os.path.split(job["log"])
    if name != f"{job['id']}.log":
        return job["log"]
    of_the_queue = place.endswith(f"/jobs/{job['uid']}") or "/.local/state/gpulease/" in f"{place}/"
    return None if of_the_queue else f"{place}/"
