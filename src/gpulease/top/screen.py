"""The edge of `top`: a terminal by curses, keys, signals, and the loop that draws what changed. It decides nothing."""

from __future__ import annotations

import curses
import locale
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

from gpulease.errors import GpuleaseError, UsageError
from gpulease.identity import user_name
from gpulease.job_selection import one_job
from gpulease.job_words import left_text
from gpulease.terminal import STYLES, Terminal, clean
from gpulease.top.entries import Entry, chosen, entries, ordered
from gpulease.top.feed import Feed
from gpulease.top.output_lines import Output
from gpulease.top.picture import Known, Line, frame, most_scroll, table_room
from gpulease.top.view import Action, View, press, settled

LOOK = 0.25  # seconds between looks at a log that is shown
SAID = 8.0  # seconds that a message stays, unless a key is pressed
NAMES: dict[int | str, str] = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_LEFT: "left",
    curses.KEY_PPAGE: "pageup",
    curses.KEY_NPAGE: "pagedown",
    curses.KEY_HOME: "home",
    curses.KEY_END: "end",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
    **{curses.KEY_F0 + number: f"f{number}" for number in range(1, 13)},
    "\n": "enter",
    "\r": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\x08": "backspace",
}
PAST = {"kill": "killed", "pause": "paused", "resume": "resumed"}


def show() -> None:
    """Until it is left."""
    with suppress(locale.Error):
        locale.setlocale(locale.LC_ALL, "")
    try:
        curses.setupterm()
    except curses.error:
        raise UsageError(
            f"Nothing is known of the terminal {os.environ.get('TERM', '')[:40]!r}.",
            "Set TERM to what it is, or use `gpulease status --watch`.",
        ) from None
    feed = Feed()  # what is wrong with the broker is told before the screen is taken
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ.setdefault("ESCDELAY", "25")
    window = curses.initscr()
    try:
        curses.noecho()
        curses.cbreak()
        window.keypad(True)
        Screen(window, feed).run()
    except KeyboardInterrupt:
        pass
    finally:
        curses.endwin()


class Screen:
    def __init__(self, window: curses.window, feed: Feed) -> None:
        self._window, self._feed = window, feed
        self._terminal = Terminal()
        self._terminal.unicode &= "utf" in locale.nl_langinfo(locale.CODESET).lower()
        self._styles = _styles(bool(os.environ.get("NO_COLOR")))
        self._user = user_name(os.geteuid())
        self._view, self._drawn = View(), list[Line]()
        self._output: Output | None = None
        self._entry: Entry | None = None  # whose page is open, as it was last seen
        self._size = (0, 0)
        self._second, self._connections = 0, feed.connections
        self._said_until = 0.0
        self._wake, woken = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGWINCH, lambda *_: None)  # it wakes the loop, which looks at the size
        window.nodelay(True)
        with suppress(curses.error):
            curses.curs_set(0)

    def run(self) -> None:
        while True:
            self._feed.turn(time.monotonic())
            if self._feed.connections != self._connections:
                self._connections = self._feed.connections
                self._say("The broker is back.")
            self._tick()
            self._resize()
            self._grow()
            if self._feed.changed:
                self._draw(self._known())
            if self._wait() and not self._read_keys():
                return

    # ---------------------------------------------------------------- what happens

    def _wait(self) -> bool:
        """Until something comes or the next second; whether it is a key."""
        poll = select.poll()
        for descriptor in (0, self._wake, *self._feed.descriptors()):
            poll.register(descriptor, select.POLLIN)
        now = time.time()
        rest = min(1 - now % 1, self._feed.timeout(time.monotonic()))
        found = dict(poll.poll((min(rest, LOOK) if self._output else rest) * 1000 + 1))
        if self._wake in found:
            os.read(self._wake, 1024)
        if found.get(0, 0) & (select.POLLHUP | select.POLLERR | select.POLLNVAL):
            raise SystemExit(128 + signal.SIGHUP)  # the terminal is gone
        return 0 in found

    def _tick(self) -> None:
        """Once a second: the clock, and the history of what was last told of each GPU."""
        now = time.time()
        if int(now) == self._second:
            return
        self._second, self._feed.changed = int(now), True
        if now > self._said_until:
            self._view = self._view._replace(message="")
        for device in self._feed.seen.status["devices"] if self._feed.connected else ():
            self._feed.history.add(device["uuid"], now, device["utilization"])

    def _resize(self) -> None:
        size = os.get_terminal_size(1)
        if (size.columns, size.lines) != self._size:
            self._size = (max(1, size.columns), max(1, size.lines))
            curses.resizeterm(self._size[1], self._size[0])
            self._window.clear()
            self._drawn, self._feed.changed = [], True

    def _known(self) -> Known:
        feed, view, now = self._feed, self._view, time.time()
        everything = entries(feed.seen, now)
        rows = ordered(
            chosen(everything, view.filter, self._user if view.mine else None, view.ended), view.sort, view.reverse
        )
        self._view = settled(view, rows)
        if view.page == "entry":
            self._entry = next((entry for entry in everything if entry.key == view.opened), self._entry)
        output = self._output
        return Known(
            feed.seen,
            rows,
            feed.history,
            now,
            feed.trouble,
            self._entry,
            feed.opened,
            output.lines if output else (),
            output.note if output else "",
        )

    def _grow(self) -> None:
        job = self._feed.opened
        if job is None:
            self._output = None
            return
        if self._output is None or self._output.id != job["id"]:
            self._output = Output(job)
        self._feed.changed |= self._output.grow(job)

    # ---------------------------------------------------------------- keys

    def _read_keys(self) -> bool:
        """Whether to go on. Each key is about what the one before it led to."""
        while True:
            try:
                read = self._window.get_wch()
            except curses.error:  # no more
                return True
            name = NAMES.get(read, read if isinstance(read, str) else "")
            if name == "\x0c":  # Ctrl-L: another program wrote over it
                self._window.redrawwin()
                self._feed.changed = True
            elif not self._press(name):
                return False

    def _press(self, key: str) -> bool:
        known, terminal, (width, height) = self._known(), self._terminal, self._size
        before = self._view
        page = table_room(known, before, width, height, terminal)
        view, action = press(before, key, known.rows, self._entry, page)
        self._view = view._replace(scroll=min(view.scroll, most_scroll(known, view, width, height, terminal)))
        self._feed.changed, self._said_until = True, time.time() + SAID
        if (before.page, before.opened) != (view.page, view.opened):
            self._open()
        if action is not None and action.verb != "quit":
            self._act(action)
        return action is None or action.verb != "quit"

    def _open(self) -> None:
        """The page of an entry, or leave it."""
        shown = self._view.page == "entry"
        everything = entries(self._feed.seen, time.time())
        self._entry = next((entry for entry in everything if shown and entry.key == self._view.opened), None)
        self._output = None
        self._feed.open(self._entry.job if self._entry else None)

    def _act(self, action: Action) -> None:
        self._feed.ask(action.verb, lambda told: self._say(answer_text(action, told)), select=one_job(action.job))

    def _say(self, text: str) -> None:
        self._view, self._said_until = self._view._replace(message=text), time.time() + SAID

    # ---------------------------------------------------------------- drawing

    def _draw(self, known: Known) -> None:
        """Lines that changed; curses sends of these only the cells that did, in one write."""
        self._feed.changed = False
        width, height = self._size
        lines = frame(known, self._view, width, height, self._terminal)
        for number, line in enumerate(lines):
            if number >= len(self._drawn) or self._drawn[number] != line:
                self._draw_line(number, line)
        self._drawn = lines
        self._window.refresh()

    def _draw_line(self, number: int, line: Line) -> None:
        with suppress(curses.error):  # behind the last cell of the screen
            self._window.move(number, 0)
            self._window.clrtoeol()
            for text, style in line:
                shown = clean(text) if self._terminal.unicode else clean(text).encode("ascii", "replace").decode()
                self._window.addstr(shown, self._styles.get(style, 0))


def answer_text(action: Action, told: Any) -> str:
    """What came of a verb, in a line."""
    if isinstance(told, GpuleaseError):
        return f"{told.what} {told.next_step}"
    if told.get("ending"):
        return f"job {action.job} is ending"
    if told["ids"]:
        return f"{PAST[action.verb]} job {action.job}"
    return f"left as it is: {left_text(told['skipped'])}" if told["skipped"] else "nothing to do"


def _styles(plain: bool) -> dict[str, int]:
    """Attributes for curses; without colours those that are none."""
    styles = {"bold": curses.A_BOLD, "dim": curses.A_DIM, "reverse": curses.A_REVERSE}
    if plain or curses.tigetnum("colors") < 8:
        return styles
    curses.start_color()
    curses.use_default_colors()
    for number, (name, code) in enumerate(STYLES.items(), 1):
        if name not in styles:
            curses.init_pair(number, int(code) - 30, -1)
            styles[name] = curses.color_pair(number)
    return styles
