"""The edge of `top`: the loop that takes what comes, draws it and does what keys say. It decides nothing."""

from __future__ import annotations

import locale
import os
import select
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import Any

from gpulease.errors import GpuleaseError
from gpulease.hosts import hosts
from gpulease.hosts.watch import HostWatch
from gpulease.model.job_selection import one_job
from gpulease.render.jobs import left_text
from gpulease.render.terminal import Terminal
from gpulease.system.identity import user_name
from gpulease.tui.display import Display
from gpulease.tui.entries import TableEntry, chosen, entries, ordered
from gpulease.tui.layout import Scene, frame, most_scroll, table_room
from gpulease.tui.live_data import LiveData
from gpulease.tui.output_lines import Output
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
