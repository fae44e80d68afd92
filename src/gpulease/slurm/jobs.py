"""What is done to jobs on Slurm: kill, rm, pause, resume, retry, move, edit, clean; and which of them are meant."""

from __future__ import annotations

import os

from gpulease.errors import NotFound, NotOnEngine, NotPermitted, SlurmRefused, WrongState
from gpulease.model.job_selection import ENDED, EVERYBODY, MISSING, id_order, ranges
from gpulease.slurm import add, commands, options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from gpulease.protocol.messages import JobRow

    Selection = dict[str, Any]
    from gpulease.protocol.messages import Done
    from gpulease.slurm.records import Records

FORGOTTEN = (
    "Slurm forgets ended jobs after some minutes (MinJobAge). "
    "`gpulease ls --all --engine slurm` shows the jobs that are known."
)


def chosen(rows: list[JobRow], select: Selection, uid: int, looks: bool) -> list[JobRow]:
    """Those that are meant; one's own, but for ids, and for verbs that only look.

    An id, or a label, that is not there is an error; that none of them is in a state, or that there is no job, is none.
    """
    by_id = "ids" in select or "tasks" in select
    found = [row for row in rows if _is_named(str(row["id"]), select)] if by_id else list(rows)
    if by_id:
        _refuse_unknown(select, found)
    tests = list(_filters(select, uid, own=not looks and not by_id))
    found = [row for row in found if all(test(row) for test in tests)]
    if not found and (by_id or select.get("last") or "label" in select):
        raise NotFound(f"{MISSING}.", FORGOTTEN if by_id else "See `gpulease ls --all --engine slurm`.")
    if "state" in select:
        found = [row for row in found if row["state"] in select["state"].split(",")]
    if select.get("last"):
        found = found[-1:]
    if not looks and uid and any(row["uid"] != uid for row in found):
        other = next(row for row in found if row["uid"] != uid)
        raise NotPermitted(f"Job {other['id']} belongs to {other['user']}.", "Ask its owner, or root.")
    return found


def _filters(select: Selection, uid: int, own: bool) -> Iterable[Callable[[JobRow], bool]]:
    if "label" in select:
        yield lambda row: row["label"] == select["label"]
    user = select.get("user")
    if user is not None and user != EVERYBODY:
        yield lambda row: row["user"] == user
    elif select.get("mine") or (user is None and (own or select.get("last") or select.get("all"))):
        yield lambda row: row["uid"] == uid


def _is_named(id: str, select: Selection) -> bool:
    array, task = id_order(id)
    if any(first <= array <= last for first, last in select.get("ids", ())):
        return True
    return any(array == wanted and first <= task <= last for wanted, first, last in select.get("tasks", ()))


def _refuse_unknown(select: Selection, found: list[JobRow]) -> None:
    """An id that was named alone and is not there."""
    arrays = {id_order(row["id"])[0] for row in found}
    there = {str(row["id"]) for row in found}
    absent = [str(first) for first, last in select.get("ids", ()) if first == last and first not in arrays]
    tasks = select.get("tasks", ())
    absent += [f"{array}_{first}" for array, first, last in tasks if first == last and f"{array}_{first}" not in there]
    if absent and not found:
        raise NotFound(f"{MISSING}: {', '.join(absent[:5])}.", FORGOTTEN)


def named(ids: Iterable[str]) -> list[str]:
    """As few words as Slurm's commands need: `12_[0-4,7]`, `15`."""
    tasks: dict[str, list[int]] = {}
    for id in ids:
        array, _, task = id.partition("_")
        tasks.setdefault(array, [])
        if task:
            tasks[array].append(int(task))
    return [f"{array}_[{ranges(found)}]" if found else array for array, found in tasks.items()]


# -------------------------------------------------------------------- what is done to them

SUSPENDING = "Slurm lets only its operators stop a job that runs."
INSTEAD = "Let it write a checkpoint, kill it and `gpulease retry` it; or ask an administrator of Slurm."


def kill(records: Records, jobs: list[JobRow]) -> Done:
    open_jobs = [row for row in jobs if row["state"] not in ENDED]
    if open_jobs:
        commands.output_of(["scancel", *named(str(row["id"]) for row in open_jobs)], deadline=commands.ACTING)
    running = [row["id"] for row in open_jobs if row["state"] in ("running", "paused")]
    return {**_done(open_jobs, jobs), "ending": running}


def rm(records: Records, jobs: list[JobRow]) -> Done:
    done = kill(records, jobs)
    _forget(records, jobs)
    return {"ids": [row["id"] for row in jobs], "skipped": [], "ending": done["ending"]}


def clean(records: Records, jobs: list[JobRow]) -> Done:
    """Only what was added by gpulease: the others are shown until Slurm forgets them."""
    arrays = {record["id"] for record in records.by_token().values()}
    ended = [row for row in jobs if row["state"] in ENDED and str(row["id"]).partition("_")[0] in arrays]
    _forget(records, ended)
    return {"ids": [row["id"] for row in ended], "skipped": []}


def _forget(records: Records, jobs: list[JobRow]) -> None:
    """The records of jobs, and the logs that were made for them; no path that Slurm tells is touched."""
    ended = {str(row["id"]) for row in jobs if row["state"] in ENDED}
    for token, numbers in _by_record(records, jobs).items():
        record = records.by_token()[token]
        id, single = record["id"], len(record["commands"]) == 1
        ids = [id] if single else [f"{id}_{number}" for number in numbers]
        for one in ended.intersection(ids):
            records.remove_log(one)
        records.forget(token, ids)


def pause(records: Records, jobs: list[JobRow]) -> Done:
    """What waits is held, what runs is suspended."""
    waiting = [row for row in jobs if row["state"] == "waiting"]
    running = [row for row in jobs if row["state"] == "running"]
    _control("hold", waiting)
    try:
        _control("suspend", running)
    except NotPermitted:
        raise NotPermitted(SUSPENDING, INSTEAD) from None
    return _done([*waiting, *running], jobs)


def resume(records: Records, jobs: list[JobRow]) -> Done:
    held = [row for row in jobs if row["state"] == "held"]
    paused = [row for row in jobs if row["state"] == "paused"]
    _control("release", held)
    try:
        _control("resume", paused)
    except NotPermitted:
        raise NotPermitted(SUSPENDING, "Ask an administrator of Slurm to let it go on.") from None
    return _done([*held, *paused], jobs)


def _control(verb: str, jobs: list[JobRow]) -> None:
    if jobs:
        ids = ",".join(named(str(row["id"]) for row in jobs))
        commands.output_of(["scontrol", verb, ids], deadline=commands.ACTING)


def retry(records: Records, jobs: list[JobRow], environ: dict[str, str], changes: dict[str, Any]) -> Done:
    """As new jobs with new ids, from what was kept: Slurm runs an ended job again only under conditions of its own."""
    ended = [row for row in jobs if row["state"] in ENDED]
    found: list[Any] = []
    for token, numbers in _by_record(records, ended).items():
        record = records.by_token()[token]
        each = record.get("each") or []
        options = {**record["options"], **changes, "environment": environ}
        request = {**record["request"], **options.pop("request", {})}
        for name in ("after", "after_any", "after_label", "hold"):
            options.pop(name, None)
        batch = [record["commands"][number] for number in numbers]
        texts = [each[number] for number in numbers] if each else []
        found += add.add(records, batch, texts, request, options)
    if ended and not found:
        raise WrongState("Nothing is kept of these jobs.", "Add them again; only jobs of `gpulease add` are kept.")
    return {"ids": found, "skipped": _done(ended, jobs)["skipped"]}


def _by_record(records: Records, jobs: list[JobRow]) -> dict[str, list[int]]:
    """Of each record, the numbers of the tasks that are meant."""
    tokens = {(record["id"], record.get("uid", os.geteuid())): token for token, record in records.by_token().items()}
    found: dict[str, list[int]] = {}
    for row in jobs:
        id, _, number = str(row["id"]).partition("_")
        token = tokens.get((id, row["uid"]))
        if token is not None and int(number or 0) < len(records.by_token()[token]["commands"]):
            found.setdefault(token, []).append(int(number or 0))
    return found


def move(records: Records, jobs: list[JobRow], index: int) -> Done:
    if index:
        raise NotOnEngine(
            "Slurm moves a job to the front only.", "Leave the place out, or change the priority with `gpulease edit`."
        )
    if jobs[0]["state"] not in ("waiting", "held"):
        raise WrongState(f"Job {jobs[0]['id']} is {jobs[0]['state']}, so it is not in the queue.")
    try:
        commands.output_of(
            ["scontrol", "top", ",".join(named(str(row["id"]) for row in jobs))], deadline=commands.ACTING
        )
    except (NotPermitted, SlurmRefused):
        raise NotPermitted(
            "This Slurm lets only its operators move jobs to the front.",
            "An administrator may allow it: SchedulerParameters=enable_user_top.",
        ) from None
    return {"ids": [jobs[0]["id"]], "skipped": []}


def edit(records: Records, jobs: list[JobRow], changes: dict[str, Any]) -> Done:
    after = add.ids_to_come_after(records, changes)
    words = options.changes(changes, after)
    waiting = [row for row in jobs if row["state"] in ("waiting", "held")]
    for state in ("waiting", "held") if words else ():
        # Another nice value gives a held job a priority, by which Slurm would start it.
        kept = ["Priority=0"] if state == "held" and any(word.startswith("Nice=") for word in words) else []
        for id in named(str(row["id"]) for row in waiting if row["state"] == state):
            commands.output_of(["scontrol", "update", f"JobId={id}", *words, *kept], deadline=commands.ACTING)
            if kept:
                commands.output_of(["scontrol", "uhold", id], deadline=commands.ACTING)
    if "name" in changes:
        for token, numbers in _by_record(records, waiting).items():
            records.rename(token, numbers, changes["name"])
    return _done(waiting, jobs)


def _done(acted: list[JobRow], jobs: list[JobRow]) -> Done:
    ids = {row["id"] for row in acted}
    left = [f"{row['id']} is {row['state']}" for row in jobs if row["id"] not in ids]
    return {"ids": [row["id"] for row in acted], "skipped": left}
