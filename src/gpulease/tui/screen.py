"""The edge of `top`: the loop that takes what comes, draws it and does what keys say. It decides nothing."""

from __future__ import annotations

import curses
import locale
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from functools import cache
from typing import Any

from gpulease.errors import GpuleaseError, UsageError
from gpulease.hosts import hosts
from gpulease.hosts.watch import HostWatch
from gpulease.model.job_selection import one_job
from gpulease.render.jobs import left_text
from gpulease.render.terminal import STYLES, Terminal, clean, width_of
from gpulease.system.identity import user_name
from gpulease.tui.entries import TableEntry, chosen, entries, ordered
from gpulease.tui.layout import Line, Scene, frame, most_scroll, table_room
from gpulease.tui.live_data import LiveData, Output
from gpulease.tui.view import Action, View, press, with_valid_selection

LOG_CHECK_INTERVAL = 0.25  # seconds between looks at a log that is shown
HOSTS_WATCHED = 5.0  # seconds that the hosts are taken to be looked at, once they were shown: a loop takes one
MESSAGE_SHOWN = 8.0  # seconds that a message stays, unless a key is pressed
PAST = {"kill": "killed", "pause": "paused", "resume": "resumed"}


def show() -> None:
    """Until it is left; then the terminal is as it was."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    terminal = Terminal()
    display = Display(bool(os.environ.get("NO_COLOR")), terminal.unicode)
    live = LiveData(not hosts.known())  # what is wrong with the broker is told before the screen is taken
    screen = Screen(display, live, terminal)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGTSTP, lambda *_: screen.stop())
    signal.signal(signal.SIGCONT, lambda *_: display.enter())
    display.enter()
    try:
        screen.run()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        with suppress(OSError, termios.error):  # it may be gone
            display.leave()


class Screen:
    def __init__(self, display: Display, live: LiveData, terminal: Terminal) -> None:
        self._display, self._live, self._terminal = display, live, terminal
        self._user = user_name(os.geteuid())
        self._view = View() if live.seen.status["devices"] else View(page="hosts")  # here is nothing to see
        self._output: Output | None = None
        self._entry: TableEntry | None = None  # whose page is open, as it was last seen
        self._size = (0, 0)
        self._second, self._connections = 0, live.connections
        self._said_until = 0.0
        self._wake, woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(woken, False)
        self._woken = woken
        self._hosts: HostWatch | None = None  # from when they are first looked at
        self._hosts_note = ""
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGWINCH, lambda *_: None)  # it wakes the loop, which looks at the size

    def stop(self) -> None:
        """Ctrl-Z: to the shell, until `fg` sends CONT."""
        self._display.leave()
        os.kill(os.getpid(), signal.SIGSTOP)

    def run(self) -> None:
        while True:
            self._live.turn(time.monotonic())
            if self._live.connections != self._connections:
                self._connections = self._live.connections
                self._say("The broker is back.")
            self._tick()
            self._resize()
            self._grow()
            if self._view.page == "hosts":
                self._look_at_hosts()
            if self._live.changed:
                self._draw(self._scene())
            if self._wait() and not self._read_keys():
                return

    # ---------------------------------------------------------------- what happens

    def _wait(self) -> bool:
        """Until something comes or the next second; whether it is a key."""
        poll = select.poll()
        for descriptor in (0, self._wake, *self._live.descriptors()):
            poll.register(descriptor, select.POLLIN)
        now = time.time()
        rest = min(1 - now % 1, self._live.timeout(time.monotonic()))
        found = dict(poll.poll((min(rest, LOG_CHECK_INTERVAL) if self._output else rest) * 1000 + 1))
        if self._wake in found:  # a signal: the size may be another, or it was stopped for a while
            os.read(self._wake, 1024)
            self._live.changed = True
        if found.get(0, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            raise SystemExit(128 + signal.SIGHUP)  # the terminal is gone
        return 0 in found

    def _tick(self) -> None:
        """Once a second: the clock, and the history of what was last told of each GPU."""
        now = time.time()
        if int(now) == self._second:
            return
        self._second, self._live.changed = int(now), True
        if now > self._said_until:
            self._view = self._view._replace(message="")
        for device in self._live.seen.status["devices"] if self._live.connected else ():
            self._live.history.add(device["uuid"], now, device["utilization"])

    def _resize(self) -> None:
        size = os.get_terminal_size(1)
        if (size.columns, size.lines) != self._size:
            self._size = (max(1, size.columns), max(1, size.lines))
            self._display.forget()
            self._live.changed = True

    def _scene(self) -> Scene:
        live, view, now = self._live, self._view, time.time()
        everything = entries(live.seen, now)
        rows = ordered(
            chosen(everything, view.filter, self._user if view.mine else None, view.ended), view.sort, view.reverse
        )
        self._view = with_valid_selection(view, rows)
        if view.page == "entry":
            self._entry = next((entry for entry in everything if entry.key == view.opened), self._entry)
        output = self._output
        return Scene(
            live.seen,
            rows,
            live.history,
            now,
            live.trouble,
            self._entry,
            live.opened,
            output.lines if output else (),
            output.note if output else live.refused,
            self._hosts.rows if self._hosts else (),
            self._hosts_note,
        )

    def _grow(self) -> None:
        job = self._live.opened
        if job is None:
            self._output = None
            return
        if self._output is None or self._output.id != job["id"]:
            self._output = Output(job)
        count, scroll = self._output.count, self._view.scroll
        self._live.changed |= self._output.grow(job)
        if scroll:  # what is read stays where it is
            self._view = self._view._replace(scroll=scroll + self._output.count - count)

    def _look_at_hosts(self) -> None:
        if self._hosts is None:
            try:
                self._hosts = HostWatch(hosts.names(), lambda rows: self._wake_up())
            except GpuleaseError as error:
                self._hosts_note = f"{error.what} {error.next_step}"
                return
            self._hosts.start()
        self._hosts.want(HOSTS_WATCHED)

    def _wake_up(self) -> None:
        """From another thread: the loop draws again."""
        with suppress(BlockingIOError):  # then it wakes anyway
            os.write(self._woken, b"\0")

    # ---------------------------------------------------------------- keys

    def _read_keys(self) -> bool:
        """Whether to go on. Each key is about what the one before it led to."""
        for name in self._display.read_keys():
            if name == "redraw":  # another program wrote over it
                self._display.forget()
                self._live.changed = True
            elif not self._press(name):
                return False
        return True

    def _press(self, key: str) -> bool:
        scene, terminal, (width, height) = self._scene(), self._terminal, self._size
        before = self._view
        page = table_room(scene, before, width, height, terminal)
        view, action = press(before, key, scene.rows, self._entry, page)
        self._view = view._replace(scroll=min(view.scroll, most_scroll(scene, view, width, height, terminal)))
        self._live.changed, self._said_until = True, time.time() + MESSAGE_SHOWN
        if (before.page, before.opened) != (view.page, view.opened):
            self._open()
        if action is not None and action.verb != "quit":
            self._act(action)
        return action is None or action.verb != "quit"

    def _open(self) -> None:
        """The page of an entry, or leave it."""
        shown = self._view.page == "entry"
        everything = entries(self._live.seen, time.time())
        self._entry = next((entry for entry in everything if shown and entry.key == self._view.opened), None)
        self._output = None
        self._live.open(self._entry.job if self._entry else None)

    def _act(self, action: Action) -> None:
        self._live.ask(action.verb, lambda reply: self._say(answer_text(action, reply)), select=one_job(action.job))

    def _say(self, text: str) -> None:
        self._view, self._said_until = self._view._replace(message=text), time.time() + MESSAGE_SHOWN

    # ---------------------------------------------------------------- drawing

    def _draw(self, scene: Scene) -> None:
        self._live.changed = False
        width, height = self._size
        self._display.draw(frame(scene, self._view, width, height, self._terminal))


def answer_text(action: Action, reply: Any) -> str:
    """What came of a verb, in a line."""
    if isinstance(reply, GpuleaseError):
        return f"{reply.what} {reply.next_step}"
    if reply.get("ending"):
        return f"job {action.job} is ending"
    if reply["ids"]:
        return f"{PAST[action.verb]} job {action.job}"
    return f"left as it is: {left_text(reply['skipped'])}" if reply["skipped"] else "nothing to do"


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
