"""PURE: what the broker told, as one table: who holds GPUs, who uses them without a lease, who waits, what ended."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpulease.model.job_selection import ENDED, job_number, line_id
from gpulease.model.quantities import format_bytes
from gpulease.render import times
from gpulease.render.jobs import COLOURS, job_text, state_text, wants
from gpulease.render.status import short_command
from gpulease.render.times import span

Row = dict[str, Any]  # as `status --json` and `ls --json` have it

GROUPS = {
    "holding": "holding GPUs",
    "outside": "using GPUs without a lease",
    "line": "waiting, in order",
    "held": "held back",
    "ended": "ended",
}
WORDS = {"job": "running", "reservation": "reserved"}  # kinds of leases, as states
SORTS = ("order", "user", "time", "gpu", "what")


class MachineSeen(NamedTuple):
    """What was told last. `status` is the document of `status --json`, with devices as they were last sampled."""

    status: Row
    jobs: tuple[Row, ...] = ()  # running, then the line, then the last that ended
    counts: dict[str, int] = {}  # noqa: RUF012  # of all jobs, by state; never changed in place
    paused: bool = False


class TableEntry(NamedTuple):
    """One line of the table. `seconds` is what `time` says, to sort by."""

    key: str  # J12, L3, or a pid
    group: str
    user: str
    state: str
    colour: str
    gpus: str
    time: str
    seconds: float
    priority: str
    why: str
    what: str
    job: int | None


def entries(seen: MachineSeen, now: float) -> list[TableEntry]:
    jobs = {line_id(job["id"]): job for job in seen.jobs}
    status = seen.status
    found = [_holding(lease, jobs.get(lease["id"]), now) for lease in status["leases"]]
    found += _outside(status["devices"])
    found += [_waiting(row, jobs.get(row["id"]), now) for row in status["line"]]
    there = {entry.key for entry in found}
    rest = [(key, job) for key, job in jobs.items() if key not in there]
    found += [_job(key, job, "held", now) for key, job in rest if job["state"] == "held"]
    return found + [_job(key, job, "ended", now) for key, job in rest if job["state"] in ENDED]


def _holding(lease: Row, job: Row | None, now: float) -> TableEntry:
    state = "ending" if lease.get("ending") else lease["kind"] if job is None else state_text(job)
    note = " ".join(text for text in (lease.get("job"), lease["note"]) if text)
    what = note if job is None or job["state"] in ENDED else job_text(job)  # type: ignore[arg-type]  # a JobRow
    until = f" ({span(lease['until'] - now)} left)" if lease["until"] else ""
    share = f" {format_bytes(lease['memory'])}" if lease["memory"] else ""
    return TableEntry(
        key=lease["id"],
        group="holding",
        user=lease["user"],
        state=WORDS.get(state, state),
        colour=COLOURS.get(state, "cyan"),
        gpus=(",".join(lease["labels"]) or "none") + share,
        time=span(now - lease["since"]),
        seconds=now - lease["since"],
        priority=str(lease["priority"]),
        why="",
        what=f"{what}{until}".strip(),
        job=_job_id(lease),
    )


def _outside(devices: list[Row]) -> list[TableEntry]:
    """One entry a process, with all of its GPUs."""
    found: dict[int, TableEntry] = {}
    for device in devices:
        for process in device["processes"] or ():
            pid = process["pid"]
            if process["lease"] is not None or pid not in device["outside"]:
                continue
            before = found.get(pid)
            command = short_command(process["command"] or "(unknown command)")
            found[pid] = TableEntry(
                key=str(pid),
                group="outside",
                user=process["user"] or "?",
                state="outside",
                colour="yellow",
                gpus=f"{before.gpus},{device['label']}" if before else device["label"],
                time="",
                seconds=0.0,
                priority="",
                why="",
                what=f"{format_bytes(process['memory'])} {command}",
                job=None,
            )
    return list(found.values())


def _waiting(row: Row, job: Row | None, now: float) -> TableEntry:
    text = row["note"] or "" if job is None else job_text({**job, "why_short": None, "why_waiting": None})  # type: ignore[typeddict-item]
    asked = format_bytes(row["memory"]) if row["memory"] else str(row["gpus"])
    return TableEntry(
        key=row["id"],
        group="line",
        user=row["user"],
        state="waiting",
        colour="",
        gpus=f"({asked})",
        time=start_text(row, now),
        seconds=row.get("expected_start") or float("inf"),
        priority=str(row["priority"]),
        why=row.get("why_short") or row["why"],
        what=text or row["kind"],
        job=_job_id(row),
    )


def _job(key: str, job: Row, group: str, now: float) -> TableEntry:
    began, ended = job["started"], job["ended"]
    lasted = (ended or now) - began if began is not None and group == "ended" else 0.0
    return TableEntry(
        key=key,
        group=group,
        user=job["user"],
        state=state_text(job),
        colour=COLOURS.get(state_text(job), ""),
        gpus=",".join(job["devices"]) or wants(job),  # type: ignore[arg-type]  # a JobRow
        time=span(lasted) if lasted else "",
        seconds=lasted,
        priority=str(job["request"]["priority"]),
        why="",
        what=job_text(job),  # type: ignore[arg-type]
        job=job["id"],
    )


def start_text(row: Row, now: float) -> str:
    """When what waits should start: the only place here that says it."""
    return times.start_text(row, now)


def _job_id(row: Row) -> int | None:
    return job_number(row["id"]) or None


def chosen(found: list[TableEntry], text: str, user: str | None, ended: bool) -> list[TableEntry]:
    """Those with every word of `text` somewhere; only of `user`, if one is named; with `ended` also what is over."""
    words = text.lower().split()
    return [
        entry
        for entry in found
        if (ended or entry.group != "ended")
        and user in (None, entry.user)
        and all(any(word in cell.lower() for cell in entry if isinstance(cell, str)) for word in words)
    ]


def ordered(found: list[TableEntry], sort: str, reverse: bool) -> list[TableEntry]:
    """Sorted within each group; groups stay in their order."""
    keys = {
        "user": lambda entry: (entry.user,),
        "time": lambda entry: (entry.seconds,),
        "gpu": lambda entry: (entry.gpus,),
        "what": lambda entry: (entry.what,),
    }
    shown: list[TableEntry] = []
    for group in GROUPS:
        rows = [entry for entry in found if entry.group == group]
        if sort in keys:
            rows.sort(key=keys[sort])
        shown += reversed(rows) if reverse else rows
    return shown
