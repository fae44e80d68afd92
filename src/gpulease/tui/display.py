"""The terminal of `top`: its capabilities from terminfo, keys that come, frames that go out in one write each.

Of curses only terminfo is used: ncurses writes a frame in many small pieces, seen one by one over a slow line.
"""

from __future__ import annotations

import curses
import os
import re
import select
import termios
import tty
from functools import cache

from gpulease.errors import UsageError
from gpulease.render.terminal import STYLES, clean, width_of
from gpulease.tui.layout import Line

Cell = tuple[str, str]  # a letter and its style

PATIENCE = 50  # milliseconds for the rest of a key that came in parts
READ = 4096
SEQUENCE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.|\[|O|)", re.DOTALL)
WHOLE = re.compile(rb"\x1b(\[[0-?]*[ -/]*[@-~]|O.)", re.DOTALL)
KEYS = {
    "up": ("kcuu1", "[A", "OA"),
    "down": ("kcud1", "[B", "OB"),
    "left": ("kcub1", "[D", "OD"),
    "pageup": ("kpp", "[5~"),
    "pagedown": ("knp", "[6~"),
    "home": ("khome", "[H", "OH", "[1~"),
    "end": ("kend", "[F", "OF", "[4~"),
    "f1": ("kf1", "OP", "[11~"),
    "f3": ("kf3", "OR", "[13~"),
    "f4": ("kf4", "OS", "[14~"),
    "f6": ("kf6", "[17~"),
    "f9": ("kf9", "[20~"),
    "f10": ("kf10", "[21~"),
    "enter": ("kent", "OM"),
    "backspace": ("kbs",),
}
LETTERS = {"\n": "enter", "\r": "enter", "\x7f": "backspace", "\x08": "backspace", "\x0c": "redraw"}


class Display:
    """Taken by `enter` and given back as it was by `leave`, each as often as one likes."""

    def __init__(self, plain: bool, unicode: bool) -> None:
        try:
            curses.setupterm()
        except curses.error:
            raise _unfit() from None
        if not curses.tigetstr("cup"):
            raise _unfit()
        self._unicode = unicode
        self._styles = _styles(plain)
        self._keys = _keys()
        self._pending = b""
        self._drawn: list[list[Cell]] = []
        self._unknown = True  # what is on the screen
        self._saved = termios.tcgetattr(0)

    def enter(self) -> None:
        tty.setcbreak(0, termios.TCSADRAIN)
        self._write(b"".join(map(_text, ("smcup", "smkx", "civis"))))
        self.forget()

    def leave(self) -> None:
        back = "rmcup" if _text("rmcup") else "clear"  # a terminal without a second screen
        self._write(b"".join(map(_text, ("sgr0", "rmkx", "cnorm", back))))
        termios.tcsetattr(0, termios.TCSADRAIN, self._saved)

    def forget(self) -> None:
        """Draw the next frame whole: what is on the screen is not known any more. A signal may say so at any time."""
        self._unknown = True

    def draw(self, lines: list[Line]) -> None:
        """Only what changed, in one write."""
        cells = [self._cells(line) for line in lines]
        parts: list[bytes] = []
        if self._unknown:
            self._unknown, self._drawn, parts = False, [], [_text("sgr0"), _text("clear")]
        for number, line in enumerate(cells):
            before = self._drawn[number] if number < len(self._drawn) else []
            if line != before:
                parts += self._changed(number, before, line)
        self._drawn = cells
        if parts:
            self._write(b"".join(parts))

    def _cells(self, line: Line) -> list[Cell]:
        """Letters that may be sent to a terminal, each with its style."""
        found = [(letter, style) for text, style in line for letter in clean(text)]
        while found and found[-1] == (" ", ""):
            found.pop()
        return found

    def _changed(self, number: int, before: list[Cell], line: list[Cell]) -> list[bytes]:
        """What makes one line of the screen out of what it was."""
        pairs = enumerate(zip(before, line, strict=False))
        first = next((place for place, (old, new) in pairs if old != new), min(len(before), len(line)))
        last = len(line)
        if len(before) == len(line):  # then what is behind the last change stays, if every letter is as wide
            while last > first and before[last - 1] == line[last - 1]:
                last -= 1
            if any(width_of(old[0]) != width_of(new[0]) for old, new in zip(before, line, strict=True)):
                last = len(line)
        column = sum(width_of(letter) for letter, _ in line[:first])
        parts = [curses.tparm(_text("cup"), number, column)]
        shown = ""
        for letter, style in line[first:last]:
            if style != shown:
                parts += [_text("sgr0"), self._styles.get(style, b"")]
                shown = style
            parts.append(letter.encode("utf-8" if self._unicode else "ascii", "replace"))
        parts += [_text("sgr0")] if shown else []
        return [*parts, *([_text("el")] if len(line) < len(before) else [])]

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def read_keys(self) -> list[str]:
        """What was typed, by name; an empty list when nothing was."""
        self._pending += os.read(0, READ)
        found, self._pending = decoded(self._pending, self._keys)
        if self._pending and not _more(PATIENCE):  # what looked like the begin of a key was the key Esc
            found, self._pending = [*found, "escape"], b""
        return found


def decoded(data: bytes, table: dict[bytes, str]) -> tuple[list[str], bytes]:
    """The keys in what was read, and a rest that may be the begin of one. Keys that nobody knows are left out."""
    found: list[str] = []
    while data:
        if data[:1] == b"\x1b":
            match = max((one for one in table if data.startswith(one)), key=len, default=b"")
            if not match and SEQUENCE.fullmatch(data) and not WHOLE.match(data):
                return found, data
            whole = WHOLE.match(data)
            length = len(match) or (whole.end() if whole else 1)
            found.append(table.get(match, "" if whole else "escape"))
            data = data[length:]
            continue
        text = data.partition(b"\x1b")[0]
        letters = text.decode(errors="ignore")
        found += [table.get(letter.encode(), LETTERS.get(letter, letter)) for letter in letters]
        data = data[len(text) :]
    return [name for name in found if name], b""


def _more(milliseconds: int) -> bool:
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _unfit() -> UsageError:
    return UsageError(
        f"The terminal {os.environ.get('TERM', '')[:40]!r} cannot be drawn on.",
        "Set TERM to what it is, or use `gpulease status --watch`.",
    )


@cache
def _text(capability: str) -> bytes:
    """What terminfo says, without the pauses that terminals of old needed."""
    return re.sub(rb"\$<[^>]*>", b"", curses.tigetstr(capability) or b"")


def _styles(plain: bool) -> dict[str, bytes]:
    styles = {"bold": _text("bold"), "dim": _text("dim"), "reverse": _text("rev")}
    foreground = curses.tigetstr("setaf")
    if not plain and foreground and curses.tigetnum("colors") >= 8:
        colours = {name: int(code) - 30 for name, code in STYLES.items() if name not in styles}
        styles |= {name: curses.tparm(foreground, number) for name, number in colours.items()}
    return styles


def _keys() -> dict[bytes, str]:
    found: dict[bytes, str] = {}
    for name, (capability, *usual) in KEYS.items():
        found |= {f"\x1b{text}".encode(): name for text in usual}
        if sequence := curses.tigetstr(capability):
            found[sequence] = name
    return found
