"""PURE: all hosts, a line each: how many GPUs are free, the state of each, how many wait, and what is wrong."""

from __future__ import annotations

from copy import copy

from gpulease.render.hosts import LEGEND, simulated_line, table_lines
from gpulease.render.terminal import Terminal, clean, fit
from gpulease.tui.entries import Row
from gpulease.tui.output_lines import wrapped

Line = list[tuple[str, str]]
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
