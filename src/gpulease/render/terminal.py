"""What an output can show: width, colour, text cut to it, and tables that fit. Not for what is shown."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

# Without blue (34), which nobody can read on black.
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "magenta": "35", "cyan": "36"}


class Terminal:
    """What the output can show: width, colour, and more than ASCII or not."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        stream = sys.stdout if stream is None else stream
        environ = os.environ
        self.interactive = stream.isatty()
        self.redraws = self.interactive and environ.get("TERM") != "dumb"
        self.colour = self.redraws and not environ.get("NO_COLOR")
        # In the locale C Python writes UTF-8 all the same, which whoever chose that locale may not be able to show.
        plain = environ.get("LC_ALL") in ("C", "POSIX")
        self.unicode = not plain and "utf" in (getattr(stream, "encoding", None) or "").lower()
        self.width, self.height = _size(stream)
        # What a program reads is whole; COLUMNS says that somebody looks.
        self.cuts = self.interactive or bool(environ.get("COLUMNS"))

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if self.colour and style else text

    def bar(self, fraction: float | None, width: int) -> str:
        full, empty = ("█", "░") if self.unicode else ("#", ".")
        if fraction is None:
            return "?".center(width)
        filled = min(width, round(fraction * width))
        if fraction > 0 and filled == 0:
            filled = 1
        return full * filled + empty * (width - filled)


def clean(text: str) -> str:
    """Without control characters: a stranger's text must not drive this terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _size(stream: IO[str]) -> tuple[int, int]:
    asked = os.environ.get("COLUMNS", "")
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns, rows = 0, 0
    if asked.isdecimal() and len(asked) < 6 and int(asked) > 0:
        columns = int(asked)
    return max(columns or 80, 20), max(rows or 24, 5)


def width_of(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(bool(unicodedata.combining(letter)) for letter in text)


def fit(text: str, width: int, terminal: Terminal, right: bool = False) -> str:
    """Exactly `width` columns: padded, or cut with a mark."""
    text = clean(text)
    if width_of(text) > width:
        mark = "…" if terminal.unicode else "~"
        while text and width_of(text) > width - 1:
            text = text[:-1]
        text += mark if width > 0 else ""
    padding = " " * (width - width_of(text))
    return padding + text if right else text + padding


# -------------------------------------------------------------------- tables

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
