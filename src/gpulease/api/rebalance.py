"""`gpulease rebalance`: waiting jobs go to a host where they would start sooner. No job is lost, and none runs twice.

The order of steps is what holds that, through an end of this process at any instant:

    begun      the journal has what is moved, with a token for each job
    added      the new host has the jobs, held; sent again by the same token they are there once
    removing   the old host is told to remove those that still wait, as they were copied and with nothing after them:
               a job that has started or was changed stays where it is
    removed    what was removed there is let go here, by its token; of what was not, the held copy is removed

Each step is on disk before the next begins. The next `rebalance` finishes what one that was killed has begun.
Not for: which jobs are moved (`hosts.choice`), and how a job is sent (`transfer`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gpulease.api.job_commands import folder, own_environment, refuse_unstartable, variables, with_log, without
from gpulease.api.jobs import add
from gpulease.client import connection
from gpulease.errors import BrokerUnavailable, GpuleaseError, HostUnavailable, NotGranted, StateError, UsageError
from gpulease.hosts import hosts
from gpulease.hosts.choice import HostOffer, Move, moves
from gpulease.model.fields import JOB, REQUEST, command_words
from gpulease.model.job_selection import MISSING, line_id, ranges
from gpulease.model.request import WIRE
from gpulease.protocol.messages import Added, JobRow
from gpulease.system import places

MARGIN = 60.0  # seconds that a move must gain
AT_ONCE = 30  # jobs of one group, which go together; a broker remembers the tokens of as many batches of a user
MAX_REQUESTS = 16  # different ones of which hosts are asked about in one run
ALIKE = 64  # of one request that a host is asked about
MAX_EVENTS = 10_000  # that a host tells of at once
LONG = 120.0  # seconds for a host to do something to a group
# field of a request, its option of `explain`, its unit
OPTIONS = (("memory", "--mem", "B"), ("min_memory", "--min-memory", "B"), ("max_leases", "--max-leases", ""))
BEGUN, ADDED, REMOVING, REMOVED = "begun", "added", "removing", "removed"


# ---------------------------------------------------------------------- which


def planned(names: Sequence[str]) -> tuple[list[Move], list[str], list[GpuleaseError]]:
    """The moves that would gain something, what stays though it would gain, and the hosts that cannot be asked."""
    words = ("ls", "--json", "--mine", "--state=waiting,held", "--most=1000")
    answers = hosts.ask_all(dict.fromkeys(names, words))
    waiting: list[tuple[str, int, float | None, str]] = []
    requests: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for job in () if answer.trouble is not None else answer.document["jobs"]:
            if not may_move(job) or (job["request"].get("not_before") or 0) > answer.document["time"]:
                continue
            key = json.dumps(job["request"], sort_keys=True)
            if key not in requests and len(requests) == MAX_REQUESTS:
                continue
            requests[key] = job["request"]
            start = job["expected_start"]
            waiting.append((answer.host, job["id"], start and start - answer.document["time"], key))
    alive = [answer.host for answer in answers if answer.trouble is None]
    count = {key: min(ALIKE, sum(one[3] == key for one in waiting)) for key in requests}
    candidates = {key: _candidates(alive, request, count[key]) for key, request in requests.items()}
    chosen, followers = moves(waiting, candidates, MARGIN), _followers(answers)
    stayed = [move for move in chosen if (move.source, move.job) in followers]
    if stayed:
        free = [one for one in waiting if (one[0], one[1]) not in followers]
        chosen = moves(free, candidates, MARGIN)
    listed = [
        f"{move.source}:{move.job} stays: it is what job {ranges(followers[move.source, move.job])} comes after."
        for move in stayed
    ]
    return chosen, listed, [answer.trouble for answer in answers if answer.trouble is not None]


def _followers(answers: Sequence[hosts.Answer]) -> dict[tuple[str, int], list[int]]:
    """By host and job: the jobs that come after it."""
    found: dict[tuple[str, int], list[int]] = {}
    for answer in answers:
        for job in () if answer.trouble is not None else answer.document["jobs"]:
            for id in job["after"]:
                found.setdefault((answer.host, id), []).append(job["id"])
    return found


def _candidates(names: Sequence[str], request: dict[str, Any], count: int) -> list[HostOffer]:
    words = ("explain", "--json", "--job", f"--count={count}", *_options(request))
    answers = [answer for answer in hosts.ask_all(dict.fromkeys(names, words)) if answer.trouble is None]
    found = [HostOffer.of(answer.host, answer.document) for answer in answers]
    return [one for one in found if one is not None]


def _options(request: dict[str, Any]) -> list[str]:
    """A request as `gpulease explain` takes it."""
    words = [f"--gpus={request['gpus']}", f"--priority={request['priority']}"]
    words += [f"{option}={request[name]}{unit}" for name, option, unit in OPTIONS if request.get(name) is not None]
    words += [f"--model={','.join(request['models'])}"] if request.get("models") else []
    words += [f"--for={request['duration']:.0f}"] if request.get("duration") else []
    flags = {"beside_outside": "--beside-outside", "mig": "--mig"}
    return [*words, *(word for field, word in flags.items() if request.get(field))]


# ---------------------------------------------------------------------- the journal


class Group:
    """Jobs that go from one host to another together, and how far they have come."""

    def __init__(self, path: str, document: dict[str, Any]) -> None:
        self.path, self.document = path, document
        self.source, self.target = str(document["source"]), str(document["target"])
        # id, changed: when it was last, token, batch, new: the id there, removed
        self.jobs: list[dict[str, Any]] = document["jobs"]
        self.interrupted = "step" in document  # an earlier `rebalance` began it, and others may have acted since

    def to(self, step: str) -> None:
        """On disk, and then it is so."""
        self.document["step"] = step
        fresh = f"{self.path}.new"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.document, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(fresh, self.path)

    def over(self) -> None:
        os.unlink(self.path)

    def ids(self, name: str) -> str:
        return ranges(job[name] for job in self.jobs)


@contextlib.contextmanager
def journal() -> Iterator[str]:
    """The folder with the groups that are under way. Homes are shared by hosts: one `rebalance` of a user at a time."""
    state = places.own(os.environ).state
    folder = os.path.join(state if os.environ.get("GPULEASE_DIR") else os.path.dirname(state), "rebalance")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateError(f"The folder {folder!r} cannot be used: {error.strerror}.", places.ELSEWHERE) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    except BlockingIOError:
        raise NotGranted("Another `gpulease rebalance` of yours is running.", "Wait until it has ended.") from None
    finally:
        os.close(lock)


def unfinished(folder: str) -> list[Group]:
    paths = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".json")]
    found = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            found.append(Group(path, json.load(file)))
    return found


def prepared(folder: str, source: str, target: str, ids: Sequence[int]) -> Group | None:
    """The jobs of these that still wait, with all about them; None when none does. Nothing has begun yet."""
    rows = hosts.ask(source, ("show", "--json", "--env", ranges(ids)), LONG)["jobs"]
    jobs = []
    for row in rows:
        if may_move(row) and row.get("environment") is not None:
            token = os.urandom(8).hex()
            about = {"id": row["id"], "changed": row["changed"], "token": token, "batch": batch_of(row, token)}
            jobs.append({**about, "new": None, "removed": False})
    if not jobs:
        return None
    path = os.path.join(folder, f"{time.time():.6f}-{os.urandom(4).hex()}.json")
    return Group(path, {"source": source, "target": target, "began": time.time(), "jobs": jobs})


# ---------------------------------------------------------------------- the steps


def carry(group: Group) -> tuple[list[tuple[int, int]], list[str]]:
    """From whatever step it has come to, to the end: old and new ids of what was moved, and what could not be.

    HostUnavailable leaves it in the journal, for the next `rebalance`.
    """
    troubles: list[str] = []
    if not group.interrupted:
        group.to(BEGUN)
    again = group.document["step"] == REMOVING  # whether it was told to remove them, maybe, and nobody heard the answer
    if group.document["step"] == BEGUN:
        troubles = _add(group)
        group.to(ADDED)
    if group.document["step"] in (ADDED, REMOVING):
        group.to(REMOVING)
        troubles += _remove(group, again)
        group.to(REMOVED)
    moved = [job for job in group.jobs if job["removed"]]
    _release_copies(group, moved)
    _drop(group, [job["new"] for job in group.jobs if not job["removed"]])
    group.over()
    return [(job["id"], job["new"]) for job in moved], troubles


def _add(group: Group) -> list[str]:
    """What the new host refuses stays where it is."""
    given = json.dumps({"batches": [job["batch"] for job in group.jobs]})
    answers = hosts.ask(group.target, ("add", "--transfer"), LONG, given)["added"]
    troubles = []
    for job, answer in zip(list(group.jobs), answers, strict=True):
        job["new"] = answer["first"]
        if answer["trouble"] is not None:
            troubles.append(f"{group.source}:{job['id']} stays: {group.target}: {answer['trouble']}")
            group.jobs.remove(job)
    return troubles


def _remove(group: Group, again: bool) -> list[str]:
    """Those that still wait there as they were copied, and only these: each is either removed, or stays, with why."""
    gone = _gone(group) if again else set()
    left = [job for job in group.jobs if job["id"] not in gone]
    if group.interrupted:  # a copy that was removed by hand takes nobody's place
        copies = _states(group.target, [job["new"] for job in left])
        left = [job for job in left if copies.get(job["new"]) == "held"]
    moves = [{"id": job["id"], "changed": job["changed"], "to": _new_id(group, job)} for job in left]
    done = _step(group.source, "moved", moves) if moves else {"ids": [], "skipped": []}
    for job in group.jobs:
        job["removed"] = job["id"] in gone or job["id"] in done["ids"]
    return [
        f"{group.source}:{id} stays: it is {why}." for id, _, why in (one.partition(" is ") for one in done["skipped"])
    ]


def _new_id(group: Group, job: dict[str, Any]) -> str:
    return f"{group.target}:{job['new']}"


def _gone(group: Group) -> set[int]:
    """Jobs that were removed for this move before it was interrupted; what their user removed is not moved.

    Where too much has happened since for anybody to know, what has not run is taken to be moved: else it might be lost.
    """
    there = _states(group.source, [job["id"] for job in group.jobs])
    missing = [job for job in group.jobs if job["id"] not in there]
    since = f"{time.time() - group.document['began'] + 3600:.0f}"
    listed = hosts.ask(group.source, ("events", "--json", f"--since={since}"))["events"] if missing else []
    moved = {(event.get("id"), event.get("why")) for event in listed if event["what"] == "moved"}
    ran = {event.get("id") for event in listed if event["what"] == "granted"}
    cut = len(listed) >= MAX_EVENTS
    return {
        job["id"]
        for job in missing
        if (line_id(job["id"]), f"moved to {_new_id(group, job)}") in moved or (cut and line_id(job["id"]) not in ran)
    }


def _step(host: str, step: str, jobs: list[dict[str, Any]]) -> Any:
    return hosts.ask(host, ("add", "--transfer"), LONG, json.dumps({step: jobs}))


def _release_copies(group: Group, moved: list[dict[str, Any]]) -> None:
    """Until none is held: one that stayed so would never run."""
    there = _states(group.target, [job["new"] for job in moved])
    held = [id for id, state in there.items() if state in ("held", "killed")]
    if held:
        _step(group.target, "let_go", [{"id": job["new"], "token": job["token"]} for job in moved])
        held = [id for id, state in _states(group.target, held).items() if state == "held"]
    if held:
        raise HostUnavailable(
            f"The jobs {ranges(held)} that were moved to {group.target} are still held there.",
            "Run `gpulease rebalance` again. It releases them.",
        )


def _drop(group: Group, ids: list[int]) -> None:
    if ids:
        try:
            hosts.ask(group.target, ("rm", "--json", "--state=held,killed", ranges(ids)), LONG)
        except GpuleaseError as trouble:
            if MISSING not in trouble.what:
                raise


def _states(host: str, ids: list[int]) -> dict[int, str]:
    """Of those that are there; only a host that says so has none of them."""
    if not ids:
        return {}
    try:
        listed = hosts.ask(host, ("show", "--json", ranges(ids)), LONG)["jobs"]
        return {job["id"]: job["state"] for job in listed}
    except GpuleaseError as trouble:
        if MISSING not in trouble.what:
            raise
        return {}


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
        raise UsageError("The input is not a batch of jobs.", "Use the same gpulease version on both hosts.") from None


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
