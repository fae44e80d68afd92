"""Tables for people, which fit the terminal."""

from __future__ import annotations

from gpulease.render.terminal import Terminal as Terminal
from gpulease.render.terminal import clean as clean
from gpulease.render.terminal import fit as fit
from gpulease.render.terminal import width_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NARROWEST = 8  # columns to which one is cut so that the last has its least


def plain_table(
    rows: Sequence[Sequence[str]], terminal: Terminal, gap: int = 2, least: int = 8, most: int = 1 << 30
) -> list[str]:
    """Columns as wide as their content; on a terminal the last one takes, and is cut to, what is left.

    It has at least `least` columns, as far as the widest of the others can do with less. In a pipe nothing is cut, and
    a cell wider than `most` moves the rest of its own row alone.
    """
    widths = [max(width_of(clean(row[column])) for row in rows) for column in range(len(rows[0]))]
    if terminal.cuts:
        room = terminal.width - gap * (len(widths) - 1)
        while room - sum(widths[:-1]) < min(least, widths[-1]) and max(widths[:-1]) > NARROWEST:
            widths[widths.index(max(widths[:-1]))] -= 1
        widths[-1] = min(widths[-1], max(8, room - sum(widths[:-1])))

    def shown(cell: str, width: int) -> str:
        return fit(cell, width if terminal.cuts else max(min(width, most), width_of(clean(cell))), terminal)

    joined = (" " * gap).join
    return [joined(shown(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
