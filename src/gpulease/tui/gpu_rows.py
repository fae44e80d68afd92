"""A line for each GPU: bars of utilization and memory, history, and who holds it, in what the width allows."""

from __future__ import annotations

from collections import deque
from typing import Any

from gpulease.model.quantities import format_bytes, span_text
from gpulease.render.status import STATE_COLOURS, bar_colour, short_command, short_name, unit, watts
from gpulease.render.terminal import Terminal, fit
from gpulease.tui.entries import Row

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
