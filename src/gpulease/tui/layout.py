"""PURE: the screen as lines of styled text, from what is known, what is looked at, and the size of the terminal."""

from __future__ import annotations

import time
from copy import copy
from itertools import groupby
from typing import NamedTuple

from gpulease.model.job_selection import STATES
from gpulease.render.hosts import LEGEND, simulated_line, table_lines
from gpulease.render.jobs import command_text
from gpulease.render.status import holder_text, host_memory, totals
from gpulease.render.terminal import Terminal, clean, fit, width_of
from gpulease.tui.entries import GROUPS, SORTS, MachineSeen, RecentLoad, Row, TableEntry, gpu_lines
from gpulease.tui.live_data import wrapped
from gpulease.tui.view import View

Line = list[tuple[str, str]]  # texts, each with its style: a word of terminal.STYLES, `reverse` or nothing

KEYS = "↑↓ Enter open  / filter  s sort  m mine  x kill  p pause  ? help  q quit"
KEYS_OF_HOSTS = "↑↓ PgUp PgDn scroll  h back"
KEYS_OF_ENTRY = "↑↓ PgUp PgDn scroll  End follow  x kill  p pause  q back"
WIDE = 110  # columns from which the reason has a column of its own
WHY = 24  # columns: the longest short reason
HELP = """\
Keys

  up, down, j, k       select a line; PgUp, PgDn, Home, End go further
  Enter                open it: all about it, and a job's log as it grows
  /                    filter: only lines with these words; Esc ends it
  m                    only mine
  e                    with or without what has ended
  s, r                 sort by order, user, time, GPU, what; turn it around
  x, F9                kill a job, after a question
  p                    pause a job, or let it go on, after a question
  h                    all hosts, where several are configured; h goes back
  g                    some GPUs, all of them, or none
  t                    history in steps of 2 s, 10 s, 1 min
  q, F10, Ctrl-C       leave; Ctrl-Z goes to the shell, `fg` comes back

In a log: up and down scroll, End follows it again, q goes back.
The broker says what you may do: jobs of others are theirs.
More: gpulease help how-to/top"""


class Scene(NamedTuple):
    """All that a picture shows, but for how it is looked at."""

    seen: MachineSeen
    rows: list[TableEntry]  # of the table, filtered and sorted
    history: RecentLoad
    now: float
    trouble: str = ""  # with the broker
    entry: TableEntry | None = None  # whose page is open
    job: Row | None = None  # the same, if it is a job's
    output: tuple[str, ...] = ()  # the end of its log
    output_note: str = ""  # why there is none
    hosts: tuple[Row, ...] = ()  # `hosts[]` of `status --hosts`, while they are looked at
    hosts_note: str = ""  # why there are none


def frame(scene: Scene, view: View, width: int, height: int, terminal: Terminal) -> list[Line]:
    """Exactly `height` lines, none wider than `width`."""
    above = _above(scene, view, width, height, terminal)
    room = max(0, height - len(above) - 1)
    if view.page == "help":
        below: list[Line] = [[(fit(text, width, terminal), "")] for text in HELP.splitlines()]
    elif view.page == "entry":
        below = _page(scene, view, width, room, terminal)
    elif view.page == "hosts":
        below = host_lines(scene.hosts, scene.hosts_note, view.scroll, width, room, terminal, scene.now)
    else:
        below = _table(scene, view, width, room, terminal)
    lines = [_cut(line, width, terminal) for line in (*above, *below[:room])]
    lines += [[("", "")]] * (height - 1 - len(lines))
    footer = _footer(scene, view, width - 1, terminal)  # some terminals scroll when their last cell is filled
    return [*lines[: height - 1], footer]


def _cut(line: Line, width: int, terminal: Terminal) -> Line:
    """For a terminal that is narrower than the narrowest columns."""
    shown: Line = []
    for text, style in line:
        shown.append((text if width_of(text) <= width else fit(text, width, terminal), style))
        width -= width_of(shown[-1][0])
    return shown


def table_room(scene: Scene, view: View, width: int, height: int, terminal: Terminal) -> int:
    """Lines of a page, for PgUp and PgDn."""
    return max(1, height - len(_above(scene, view, width, height, terminal)) - 2)


# -------------------------------------------------------------------- above


def _above(scene: Scene, view: View, width: int, height: int, terminal: Terminal) -> list[Line]:
    lines = [_title(scene, width, terminal), _counts(scene, width, terminal), *_troubles(scene, width, terminal)]
    if view.page != "table":
        return lines
    rows = {"all": height, "none": 0}.get(view.gpus, max(1, (height - 8) // 2 + 1))
    return [*lines, *gpu_lines(scene.seen.status, scene.history, view.step, scene.now, width, rows, terminal)]


def _title(scene: Scene, width: int, terminal: Terminal) -> Line:
    status = scene.seen.status
    clock = time.strftime("%H:%M:%S", time.localtime(scene.now))
    mark = "SIMULATED " if status["simulated"] else ""
    driver = f", driver {status['driver']}" if status["driver"] else ""
    host = fit(status["host"], min(24, width_of(status["host"])), terminal)
    rest = f": {totals(status['devices'], mark)}{driver}"
    before, simulated, after = fit(rest, max(0, width - width_of(host) - 9), terminal).partition("SIMULATED")
    return [(host, "bold"), (before, ""), (simulated, "yellow"), (after, ""), (f" {clock}", "dim")]


def _counts(scene: Scene, width: int, terminal: Terminal) -> Line:
    counts, status = scene.seen.counts, scene.seen.status
    parts = [f"{counts[state]} {state}" for state in STATES if counts.get(state)]
    others = status["line_length"] - counts.get("waiting", 0)
    parts += [f"{others} more in the queue"] if others > 0 else []
    text = ", ".join(parts) or "no jobs"
    text += "; the queue is paused" if scene.seen.paused else ""
    memory = host_memory(status)
    return [(fit(f"{text}; {memory}" if memory else text, width, terminal), "dim")]


def _troubles(scene: Scene, width: int, terminal: Terminal) -> list[Line]:
    status = scene.seen.status
    broker = status["broker"] or {}
    lines = [scene.trouble, broker.get("state_trouble"), status["trouble"]]
    return [[(fit(text, width, terminal), "red")] for text in lines if text]


# -------------------------------------------------------------------- the table


def _table(scene: Scene, view: View, width: int, room: int, terminal: Terminal) -> list[Line]:
    if not scene.rows:
        return [[(fit(_nothing(view), width, terminal), "dim")]]
    widths = _widths(scene.rows, width)
    heading = " ".join(fit(name, size, terminal) for name, size in widths.items())
    shown = _titled(scene.rows)
    room = max(1, room - 1)
    at = next(
        (number for number, row in enumerate(shown) if isinstance(row, TableEntry) and row.key == view.selected), 0
    )
    first = min(max(0, at - room * 2 // 3), max(0, len(shown) - room))
    lines = [[(fit(heading, width, terminal), "reverse")]]
    for row in shown[first : first + room]:
        if isinstance(row, TableEntry):
            lines.append(_row(row, row.key == view.selected, widths, terminal))
        else:
            lines.append([(fit(row, width, terminal), "bold")])
    return lines


def _titled(rows: list[TableEntry]) -> list[TableEntry | str]:
    """With a title above each group."""
    shown: list[TableEntry | str] = []
    for group, found in groupby(rows, lambda row: row.group):
        mine = list(found)
        shown += [f"{GROUPS[group]}: {len(mine)}", *mine]
    return shown


def _nothing(view: View) -> str:
    if view.filter or view.mine:
        return "Nothing matches the filter. Esc clears it."
    return "Nobody holds or waits for a GPU. `gpulease add -- CMD` queues a job."


def _widths(rows: list[TableEntry], width: int) -> dict[str, int]:
    """Columns as wide as their cells, within bounds; the last takes what is left."""
    widths = {
        "ID": _widest([row.key for row in rows], 4, 8) + 1,
        "USER": _widest([row.user for row in rows], 4, 10 if width < WIDE else 16),
        "STATE": 8,
        "GPU": _widest([row.gpus for row in rows], 4, 8 if width < WIDE else 16),
        "TIME": _widest([row.time for row in rows], 8, 12),  # `in 62min-4h`
    }
    if width >= WIDE:
        widths = {**widths, "PRIO": 4, "WHY": WHY}
    rest = width - sum(widths.values()) - len(widths)
    return {**widths, "WHAT": max(8, rest)}


def _widest(cells: list[str], least: int, most: int) -> int:
    return max(least, min(most, max(map(width_of, cells), default=0)))


def _row(row: TableEntry, selected: bool, widths: dict[str, int], terminal: Terminal) -> Line:
    what = row.what if "WHY" in widths or not row.why else f"[{row.why}] {row.what}"
    cells = {
        "ID": f"{'>' if selected else ' '}{row.key}",
        "USER": row.user,
        "STATE": row.state,
        "GPU": row.gpus,
        "TIME": row.time,
        "PRIO": row.priority,
        "WHY": row.why,
        "WHAT": what,
    }
    fitted = {name: fit(cells[name], size, terminal) for name, size in widths.items()}
    if selected:
        return [(" ".join(fitted.values()), "reverse")]
    line: Line = []
    for name, text in fitted.items():
        line += [(text, row.colour if name == "STATE" else ""), (" ", "")]
    return line[:-1]


# -------------------------------------------------------------------- one entry


def _page(scene: Scene, view: View, width: int, room: int, terminal: Terminal) -> list[Line]:
    about: list[Line] = [
        [(fit(text, width, terminal), "bold" if number == 0 else "")]
        for number, text in enumerate(_about(scene, width))
    ]
    about = about[: max(1, room // 2)]
    if scene.job is None:
        return [*about, *([(text, "dim")] for text in wrapped(scene.output_note, width))]
    follows = "" if view.scroll == 0 else f", {view.scroll} lines above its end"
    title = fit(f"log {scene.job['log'] or '(hidden)'}{follows}", width, terminal)
    if scene.output_note or not scene.output:
        note = scene.output_note or "It is empty."
        return [*about, [(title, "reverse")], [(fit(note, width, terminal), "dim")]]
    room = max(0, room - len(about) - 1)
    shown = output_window(scene.output, view.scroll, width, room)
    return [*about, [(title, "reverse")], *([(text, "")] for text in shown)]


def output_window(output: tuple[str, ...], scroll: int, width: int, room: int) -> list[str]:
    """The rows of a log that are shown when its last `scroll` rows are not."""
    rows: list[str] = []
    for text in reversed(output):
        rows[:0] = wrapped(text, width)
        if len(rows) >= room + scroll:
            break
    end = max(0, len(rows) - scroll)
    return rows[max(0, end - room) : max(end, min(room, len(rows)))]


def most_scroll(scene: Scene, view: View, width: int, height: int, terminal: Terminal) -> int:
    """How far the log, or the table of hosts, that is shown can be scrolled."""
    if view.page == "hosts":
        room = table_room(scene, view, width, height, terminal) + 1
        return max(0, len(scene.hosts) - max(1, room - OTHER_LINES))
    if view.page != "entry" or not view.scroll:
        return 0
    rows = sum(len(wrapped(text, width)) for text in scene.output)
    above = len(_above(scene, view, width, height, terminal)) + 1
    return max(0, rows - (height - 1 - above - len(_about(scene, width))))


def _about(scene: Scene, width: int) -> list[str]:
    """In full what the table shows in short."""
    entry, job = scene.entry, scene.job
    if entry is None:
        return ["It is gone."]
    on = f", GPU {entry.gpus}" if entry.gpus not in ("", "none") else ""
    lines = [f"{entry.key} of {entry.user}: {entry.state}{on}" + (f", {entry.time}" if entry.time else "")]
    if job is None:
        return [*lines, *wrapped(entry.what, width), *wrapped(_in_full(scene, entry), width)]
    lines += wrapped(f"command: {command_text(job['command'])}", width)[:3]
    lines += wrapped(f"folder:  {job['cwd']}", width)[:2] if job["cwd"] else []
    lines += wrapped(f"note:    {job['note']}", width)[:2] if job["note"] else []
    why = job["why_waiting"] or job.get("ending") or job["why"]
    return [*lines, *(wrapped(f"why:     {why}", width) if why else [])]


def _in_full(scene: Scene, entry: TableEntry) -> str:
    """Of one that holds, who and since when; of one that waits, the whole reason."""
    status = scene.seen.status
    lines = {lease["id"]: holder_text(lease, scene.now).strip() for lease in status["leases"]}
    return str({**lines, **{row["id"]: row["why"] for row in status["line"]}}.get(entry.key, ""))


# -------------------------------------------------------------------- below


def _footer(scene: Scene, view: View, width: int, terminal: Terminal) -> Line:
    if view.question is not None:
        answer = " y/N"
        return [(fit(view.question.text, width - len(answer), terminal).rstrip(), "bold"), (answer, "bold")]
    if view.typing:
        return [(fit(f"filter: {view.filter}_", width, terminal), "bold")]
    if view.message:
        return [(fit(view.message, width, terminal), "bold")]
    parts = [f"filter: {view.filter}"] if view.filter else []
    parts += ["only mine"] if view.mine else []
    parts += [f"by {view.sort}"] if view.sort != SORTS[0] else []
    state = f"[{', '.join(parts)}] " if parts and view.page == "table" else ""
    keys = {"entry": KEYS_OF_ENTRY, "hosts": KEYS_OF_HOSTS, "help": "any key goes back"}.get(view.page, KEYS)
    keys = keys if terminal.unicode else keys.replace("↑↓", "j/k")
    return [(fit(f"{state}{keys}", width, terminal), "dim")]


# -------------------------------------------------------------------- all hosts

OTHER_LINES = 3  # beside those of the hosts


def host_lines(
    rows: tuple[Row, ...], note: str, scroll: int, width: int, room: int, terminal: Terminal, now: float
) -> list[Line]:
    """`note` says why there are no rows, `scroll` how many are above what is shown."""
    if not rows:
        return [[(text, "")] for text in wrapped(clean(note), width)]
    sized = copy(terminal)
    sized.width, sized.cuts = width, True
    heading, *lines = table_lines(rows, sized, now)
    shown = [[(line, "" if row["trouble"] is None else "red")] for row, line in zip(rows, lines, strict=True)]
    return [
        *([(fit(line, width, terminal), "yellow")] for line in simulated_line(rows)),
        [(fit(heading, width, terminal), "reverse")],
        *shown[scroll : scroll + max(1, room - OTHER_LINES)],
        [(fit(LEGEND, width, terminal), "dim")],
    ]
