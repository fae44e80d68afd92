"""PURE: what the broker told, as one table: who holds GPUs, who uses them without a lease, who waits, what ended."""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from gpulease.model.job_selection import ENDED, job_number, line_id
from gpulease.model.quantities import format_bytes, span_text
from gpulease.render import times
from gpulease.render.jobs import COLOURS, job_text, state_text, wants
from gpulease.render.status import STATE_COLOURS, bar_colour, short_command, short_name, unit, watts
from gpulease.render.terminal import Terminal, fit
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


COLUMN_STEPS = (2, 10, 60)  # seconds of a column
KEPT = 240  # columns of each; no terminal shows more of them


class RecentLoad:
    """Means by column. What was not seen is None."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int], deque[tuple[int, float, int]]] = {}

    def add(self, uuid: str, time: float, percent: float | None) -> None:
        """One sample; samples come in the order of time."""
        if percent is None:
            return
        for step in COLUMN_STEPS:
            kept = self._columns.setdefault((uuid, step), deque(maxlen=KEPT))
            number, total, count = int(time // step), percent, 1
            if kept and kept[-1][0] == number:
                _, before, samples = kept.pop()
                total, count = before + percent, samples + 1
            if not kept or kept[-1][0] < number:
                kept.append((number, total, count))

    def begin(self, past: dict[str, list[tuple[float, float]]], now: float) -> None:
        """What was before the first sample, as the broker kept it by the minute."""
        for uuid, rows in past.items():
            for step in COLUMN_STEPS:
                kept = self._columns.setdefault((uuid, step), deque(maxlen=KEPT))
                first = kept[0][0] if kept else int(now // step)
                minutes = {int(time // 60): percent for time, percent in rows}
                before = [
                    (number, minutes[number * step // 60], 1)
                    for number in range(first - KEPT, first)
                    if number * step // 60 in minutes
                ]
                self._columns[uuid, step] = deque([*before, *kept], maxlen=KEPT)

    def columns(self, uuid: str, step: int, count: int, now: float) -> list[float | None]:
        """The last `count` of them, the newest at the end."""
        found = {number: total / samples for number, total, samples in self._columns.get((uuid, step), ())}
        last = int(now // step)
        return [found.get(number) for number in range(last - count + 1, last + 1)]


def past_utilization(rows: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Of the broker's answers to `history`: by UUID, the minutes of which it knows the utilization."""
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["utilization"] is not None:
            found.setdefault(row["uuid"], []).append((row["time"], row["utilization"]))
    return found


# -------------------------------------------------------------------- lines

LEVELS, PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "_.:-=+*#"
# What a column needs, the most important first; a column that is named again grows, if there is room.
STEPS = (
    ("GPU", 4),
    ("STATE", 8),
    ("UTIL", 4),
    ("MEMORY", 11),
    ("HOLDER", 12),
    ("HISTORY", 8),
    ("UTIL BAR", 6),
    ("TEMP", 4),
    ("MEMORY BAR", 6),
    ("HOLDER", 19),
    ("POWER", 6),
    ("NAME", 14),
    ("HISTORY", 24),
    ("UTIL BAR", 12),
    ("MEMORY BAR", 12),
    ("HOLDER", 32),
    ("NAME", 22),
    ("HISTORY", 60),
    ("HOLDER", 1000),
)
ORDER = ("GPU", "NAME", "STATE", "UTIL BAR", "UTIL", "MEMORY BAR", "MEMORY", "TEMP", "POWER", "HISTORY", "HOLDER")
RIGHT = ("GPU", "UTIL", "MEMORY", "TEMP", "POWER")


def columns(width: int) -> dict[str, int]:
    """The columns that fit, in their order, with their widths."""
    widths: dict[str, int] = {}
    for name, wanted in STEPS:
        used = sum(widths.values()) + len(widths) - (name in widths) - widths.get(name, 0)
        room = min(wanted, width - used)
        if room >= (widths[name] if name in widths else min(wanted, 60)):
            widths[name] = room
    return {name: widths[name] for name in ORDER if name in widths}


def gpu_lines(
    status: Row, history: RecentLoad, step: int, now: float, width: int, most: int, terminal: Terminal
) -> list[list[tuple[str, str]]]:
    """A heading and at most `most` lines; where there are more GPUs, the last says so."""
    devices = status["devices"]
    if most <= 0 or not devices:
        return []
    widths = columns(width)
    length = widths.get("HISTORY", 0)
    past = f"LAST {span_text(length * step)}"
    names = {"UTIL BAR": "", "MEMORY BAR": "", "HISTORY": past if len(past) <= length else past.removeprefix("LAST ")}
    heading = " ".join(fit(names.get(name, name), size, terminal, name in RIGHT) for name, size in widths.items())
    shown = devices if len(devices) <= most else devices[: most - 1]
    lines = [[(fit(heading, width, terminal), "reverse")]]
    for device in shown:
        cells = _cells(device, status, widths, terminal)
        cells["HISTORY"] = (sparkline(history.columns(device["uuid"], step, length, now), terminal), "cyan")
        lines.append(_line(cells, widths, terminal))
    if len(shown) < len(devices):
        free = sum(device["state"] == "free" for device in devices[len(shown) :])
        lines.append([(f"     and {len(devices) - len(shown)} more, {free} of them free; g shows all", "dim")])
    return lines


def _line(cells: dict[str, tuple[str, str]], widths: dict[str, int], terminal: Terminal) -> list[tuple[str, str]]:
    line: list[tuple[str, str]] = []
    for name, size in widths.items():
        text, style = cells[name]
        line += [(fit(text, size, terminal, name in RIGHT), style), (" ", "")]
    return line[:-1]


def sparkline(values: list[float | None], terminal: Terminal) -> str:
    """A column a value from 0 to 100, nothing where none is known."""
    levels = LEVELS if terminal.unicode else PLAIN_LEVELS
    marks = (" " if value is None else levels[max(0, min(7, int(value * 8 / 101)))] for value in values)
    return "".join(marks)


def _cells(device: Row, status: Row, widths: dict[str, int], terminal: Terminal) -> dict[str, tuple[str, str]]:
    used, total, busy = device["memory_used"], device["memory_total"], device["utilization"]
    share = used / total if used is not None and total else None
    load = None if busy is None else busy / 100
    return {
        "GPU": (device["label"], "bold"),
        "NAME": (short_name(device["name"]), ""),
        "STATE": (device["state"], STATE_COLOURS.get(device["state"], "")),
        "UTIL BAR": (terminal.bar(load, widths.get("UTIL BAR", 0)), "green" if load else ""),
        "UTIL": (unit(busy, "%"), ""),
        "MEMORY BAR": (terminal.bar(share, widths.get("MEMORY BAR", 0)), bar_colour(share)),
        "MEMORY": (f"{format_bytes(used)}/{format_bytes(total)}", ""),
        "TEMP": (unit(device["temperature"], "°C" if terminal.unicode else "C"), ""),
        "POWER": (watts(device["power"]), ""),
        "HOLDER": (_holder(device, status), "red" if device["lost"] else ""),
    }


def _holder(device: Row, status: Row) -> str:
    """Who has it, in a few words; why nobody may."""
    if device["lost"]:
        return str(device["lost"])
    holders = [_lease(lease) for lease in status["leases"] if lease["id"] in device["leases"]]
    mark = "WITHOUT A LEASE: " if device["leases"] else ""
    holders += [
        f"{mark}{process['user'] or '?'} {short_command(process['command'] or '(not visible)')}"
        for process in device["processes"] or ()
        if process["pid"] in device["outside"]
    ]
    if not holders and device["state"] == "outside":
        holders = [device["note"] or "memory in use, no process seen"]
    return ", ".join(holders) or device["note"] or ""


def _lease(lease: Row) -> str:
    return " ".join(text for text in (lease["id"], lease["user"], lease.get("job") or lease["note"]) if text)
