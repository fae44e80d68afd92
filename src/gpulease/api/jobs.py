"""The verbs of the queue, for the command line and for Python alike: each asks the broker and gives its reply.

Jobs are chosen in the same way by all: ids, ranges as "5-9", jobs, "all", "last", and `label`, `state` or `user`.
"""

from __future__ import annotations

import os
import time

from gpulease.client import connection
from gpulease.client.connection import again, opened, refuse_untrusted_broker
from gpulease.client.subscriptions import Subscription
from gpulease.errors import BrokerUnavailable, NotFound, NotGranted, UsageError, WrongState
from gpulease.model.fields import NAMES, as_argument, seconds
from gpulease.model.job_selection import DONE, ENDED, id_order, named, selection
from gpulease.model.quantities import matching

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from gpulease.client.engines import BackendConnection
    from gpulease.model.job_selection import JobId, Named, Selection
    from gpulease.protocol.messages import Added, Done, JobEnd, JobRow, Listing, ParameterRow

    OnProgress = Callable[[Collection[JobEnd], int], None]

DAY = 86400.0  # seconds; the kernel does not wait for a month at once
PART, PART_WORDS = 400_000, 8000  # characters and words of commands in one message: what is larger holds others up


def ask(verb: str, select: Selection, **fields: Any) -> Any:
    """The broker's answer; when `select` chooses no job, the error says what was meant."""
    try:
        return connection.ask(verb, select=select or None, **fields)
    except NotFound as error:
        raise named(error, select) from None


# ---------------------------------------------------------------------- acting


def kill(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    wait: bool = False,
) -> Done:
    """End jobs, with all that they started. With `wait` all of it is gone when this returns."""
    return _act("kill", selection(jobs, label, state, user, mine), wait)


def rm(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    wait: bool = False,
) -> Done:
    """Remove jobs from the queue; a running one is killed first. With `wait` it is gone when this returns."""
    return _act("rm", selection(jobs, label, state, user, mine), wait)


def retry(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    new_env: bool = False,
    **changes: Any,
) -> Done:
    """Queue ended jobs again, with `changes` of what they ask for, as `min_memory="40G"`, and of their time limit.

    With `new_env` they get this process's variables in the place of their own.
    """
    from gpulease.api.job_commands import job_changes

    strange = sorted({*changes} - {*NAMES, "time_limit"})
    if strange:
        raise UsageError(f"retry() takes no {strange[0]}.", f"It takes {', '.join((*NAMES, 'time_limit'))}.")
    fields = {"changes": job_changes(changes, as_argument, time.time())} if changes else {}
    return send_retry(selection(jobs, label, state, user, mine), fields, {} if new_env else None)


def send_retry(select: Selection, fields: dict[str, Any], env: dict[str, str] | None) -> Done:
    """`env`: variables to be added to those of this process; None: the jobs keep their own.

    `left_out` of the answer are those that they do not get, being secret by their names.
    """
    left_out: list[str] = []
    if env is not None:
        from gpulease.api.job_commands import own_environment, variables

        client = connection.take_kept() or opened()
        given = {"environment": {**own_environment(), **variables(env)}, "env_kept": list(env)}
        fields["options"], left_out = _without_secrets(client, given)
        connection.put_back(client)
    done: Done = ask("retry", select, **fields)
    return {**done, "left_out": left_out} if env is not None else done


def start(
    *jobs: Named, label: str | None = None, state: str | None = None, user: str | None = None, mine: bool = False
) -> Done:
    """Start waiting jobs now, if one runs the broker, but never on a device of another; else ahead of one's own.

    Those that failed, were killed or lost are run again.
    """
    return _act("start", selection(jobs, label, state, user, mine))


def _act(verb: str, select: Selection, wait: bool = False) -> Done:
    done: Done = ask(verb, select)
    if wait:
        wait_until_gone(done.get("ending", []))
        done["ending"] = []
    return done


def wait_until_gone(ids: list[JobId]) -> None:
    """Wait until none of these runs any more; of one that is removed nothing else would tell."""
    with Subscription("jobs") as subscription:
        while ids and ("jobs" not in subscription.rows or any(_runs(subscription, id) for id in ids)):
            subscription.receive(None)


def _runs(subscription: Subscription, id: JobId) -> bool:
    job = subscription.rows["jobs"].get(str(id))
    return job is not None and job["state"] not in ENDED


def pause(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    queue: bool = False,
) -> Done:
    """Stop jobs for a while; with `queue` start no more jobs."""
    return _pause_or_resume("pause", selection(jobs, label, state, user, mine, required=False), queue)


def resume(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    queue: bool = False,
) -> Done:
    """Let paused or held jobs go on; with `queue` start jobs again."""
    return _pause_or_resume("resume", selection(jobs, label, state, user, mine, required=False), queue)


def _pause_or_resume(verb: str, select: Selection, queue: bool) -> Done:
    if select and queue:
        raise UsageError("`queue` is about all jobs, and some were named too.", "Leave one of the two out.")
    if queue:
        connection.ask(verb, queue=True)
        return {"ids": [], "skipped": []}
    done: Done = ask(verb, select or selection(()))  # which says that none was named
    return done


def clean(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    all: bool = False,
) -> Done:
    """Forget ended jobs, and the logs that the queue made for them.

    Failed, killed and lost ones are kept, unless they are named, or with `all`: somebody may want to look at them.
    """
    if state is None and not jobs and not all:
        state = ",".join(DONE)
    select = selection(jobs, label, state, user, mine, required=False)
    try:
        done: Done = ask("clean", select)
        return done
    except NotFound:
        job = ask("show", select)["jobs"][0]  # else there is none, and that is what is told
        raise WrongState(f"Job {job['id']} is {job['state']}, so it cannot be deleted.") from None


def move(job: Named, index: int = 0, *, user: str | None = None, mine: bool = False) -> Done:
    """Give a waiting job another place in the queue, 0 being the front; `"last"` is the newest of `user`."""
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise UsageError(f"The place is {index!r}.", "Give 0 or more.")
    done: Done = connection.ask("move", id=id_of(job, user, mine), index=index)
    return done


def change(select: Selection, changes: dict[str, Any]) -> Done:
    """Change jobs that wait or are held; see model/fields.py."""
    done: Done = ask("edit", select, changes=changes)
    return done


def set(name: str | None = None, value: str | float | None = None) -> list[ParameterRow]:
    """The parameters of the queue and of the planner, or the one that is named, which gets the value."""
    text = ("on" if value else "off") if isinstance(value, bool) else None if value is None else str(value)
    reply: list[ParameterRow] = connection.ask("set", name=name, value=text)["parameters"]
    return reply


# ---------------------------------------------------------------------- looking


def ls(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    all: bool = False,
    most: int | None = None,
) -> Listing:
    """What runs, what waits and why, what ended, and how many there are of each."""
    select = selection(jobs, label, state, user, mine, required=False)
    reply: Listing = ask("ls", select, all=all, most=most or (1000 if all or select else 50))
    return reply


def show(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    environment: bool = False,
) -> list[JobRow]:
    """All about jobs."""
    reply: list[JobRow] = ask("show", selection(jobs, label, state, user, mine), environment=environment)["jobs"]
    return reply


def id_of(job: Named, user: str | None = None, mine: bool = False) -> JobId:
    """Of one job: `12`, `"J12"`, `"last"` or the job itself; it is checked to be that user's, if one is named."""
    select = selection([job], user=user, mine=mine)
    ranges = [(one, one) for one in _tasks_in(select)] or select.get("ids") or [(0, 1)]
    if not select.get("last") and (len(ranges) > 1 or ranges[0][0] != ranges[0][1]):
        raise UsageError(f"{str(job)[:40]!r} is not a job id.", "Write an id, as 12, or `last`.")
    if select.get("last") or user is not None or mine:
        found: JobId = ask("show", select)["jobs"][0]["id"]
        return found
    only: JobId = ranges[0][0]
    return only


def _tasks_in(select: Selection) -> list[str]:
    """Of arrays of Slurm's, one by one."""
    return [f"{array}_{task}" for array, first, last in select.get("tasks", ()) for task in range(first, last + 1)]


# ---------------------------------------------------------------------- waiting


def wait(
    *jobs: Named,
    label: str | None = None,
    state: str | None = None,
    user: str | None = None,
    mine: bool = False,
    timeout: float | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[JobEnd]:
    """How each job ended, in the order of their ids; that one failed raises nothing, that time is over NotGranted.

    It goes on through restarts of the broker. `progress` hears how many of how many have ended.
    """
    if jobs and label is state is user is None and all(isinstance(one, (list, tuple)) and not one for one in jobs):
        return []  # a list that happens to be empty is none to wait for

    def hear(ended: Collection[JobEnd], open_jobs: int) -> None:
        if progress is not None:
            progress(len(ended), len(ended) + open_jobs)

    return wait_with_progress(selection(jobs, label, state, user, mine), timeout, hear)


def wait_with_progress(select: Selection, timeout: float | str | None, hear: OnProgress) -> list[JobEnd]:
    """The same; `hear` gets those that have ended and how many have not, whenever that changes."""
    until = None if timeout is None else time.monotonic() + seconds(timeout, "timeout")
    ended: dict[JobId, JobEnd] = {}
    try:
        with Subscription("jobs", select=select) as subscription:
            while not _all_ended(subscription, until, ended, hear):
                pass
    except NotFound as error:
        raise named(error, select) from None
    return [ended[id] for id in sorted(ended, key=id_order)]


def _all_ended(subscription: Subscription, until: float | None, ended: dict[JobId, JobEnd], hear: OnProgress) -> bool:
    """Whether all have ended, after the next word of the broker."""
    rest = None if until is None else until - time.monotonic()
    changed = subscription.receive(None if rest is None else min(DAY, max(0.0, rest)))
    if changed is None and rest is not None and rest <= DAY:
        left = (
            "The jobs"
            if len(ended) + subscription.open < 2
            else f"{subscription.open} of {len(ended) + subscription.open} jobs"
        )
        raise NotGranted(f"{left} did not end in time.", "Wait longer; `gpulease ls` shows how far they are.")
    if not changed:
        return False
    for job in changed["jobs"].values():
        if job is not None and job["state"] in ENDED:
            ended[job["id"]] = job
        elif job is not None:
            ended.pop(job["id"], None)  # it is run again
    hear(ended.values(), subscription.open)
    return not subscription.open


# ---------------------------------------------------------------------- adding


def add(
    commands: list[list[str]],
    request: dict[str, Any],
    options: dict[str, Any],
    each: list[dict[str, str]] | None = None,
    token: str | None = None,
) -> Added:
    """Queue commands, in parts that fit a message; the last one queues all of them.

    The token lets it be sent again when the broker ended, or was silent, before it answered, and be queued once.
    """
    from gpulease.api.job_commands import script_of

    options = {**options, **script_of(commands, options.get("cwd") or "/")}
    *parts, last = _parts(commands, each or [])
    token = token or os.urandom(8).hex()
    client = connection.take_kept() or opened()
    silent = False
    while True:
        try:
            refuse_untrusted_broker(client)
            sent, left_out = _without_secrets(client, options)
            for part in parts:
                client.ask("add", request={}, options={}, more=True, **part)
            added: Added = client.ask("add", request=request, options=sent, token=token, **last)
            connection.put_back(client)
            return {**added, "left_out": sorted({*left_out, *added.get("left_out", ())})}
        except ConnectionError:
            client = _next(client)
        except BrokerUnavailable as trouble:
            if silent:
                raise _unsure(trouble) from None
            silent, client = True, _next(client)


def ids_of(added: Added) -> Sequence[JobId]:
    """Of the jobs that were added, in the order of their commands."""
    if "ids" in added:
        return added["ids"]
    first, last = added["first"], added["last"]
    return range(first, last + 1)  # type: ignore[arg-type, operator]  # numbers, of a broker; else it answers nonsense


def _next(client: BackendConnection) -> BackendConnection:
    try:
        return again(client)
    except BrokerUnavailable as trouble:
        raise _unsure(trouble) from None


def _unsure(trouble: BrokerUnavailable) -> BrokerUnavailable:
    return BrokerUnavailable(
        trouble.what, f"It may be queued all the same: see `gpulease ls` before you add it again. {trouble.next_step}"
    )


def _without_secrets(client: BackendConnection, options: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options without the variables that are not to leave this process, and the names of these."""
    if client.env_exclude is None:
        try:
            client.env_exclude = client.ask("set", name="env-exclude")["parameters"][0]["value"]
        except NotFound:
            client.env_exclude = "none"  # an older broker
    patterns = () if client.env_exclude == "none" else client.env_exclude.split()
    environ, kept = options["environment"], options.get("env_kept", ())
    left_out = [name for name in matching(environ, patterns) if name not in kept]
    rest = {name: value for name, value in environ.items() if name not in left_out}
    return {**options, "environment": rest}, left_out


def _parts(commands: list[list[str]], each: list[dict[str, str]]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    room = words_left = 0
    for number, words in enumerate(commands):
        texts = each[number] if each else {}
        length = sum(map(len, words)) + 8 * len(words) + sum(map(len, texts.values())) + 16 * len(texts)
        if not parts or length > room or words_left <= 0:
            parts.append({"commands": [], **({"each": []} if each else {})})
            room, words_left = PART, PART_WORDS
        parts[-1]["commands"].append(words)
        if each:
            parts[-1]["each"].append(texts)
        room -= length
        words_left -= len(words) + 2 * len(texts) + 1
    return parts
