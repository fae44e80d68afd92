"""Show on stderr that a request waits, why, and its place in the queue.

On a terminal it is one line, which is replaced as things change and removed at the end; in a notebook, and in the log
of a command, it is a line for each new place. A wait of less than a second is not told of. Any number of threads may
wait: a terminal shows the one that began first.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock  # threading.Lock, without the module around it

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulease.protocol.messages import StillWaiting

SILENT_FOR = 1.0  # seconds
TERMINAL, LINES, LOG, NOBODY = "terminal", "lines", "log", "nobody"  # who reads what is told, and how


class WaitNotice:
    """One wait, from its beginning to its `end`. Nothing that goes wrong with stderr ends it."""

    def __init__(self, quiet: bool = False, log: bool = False) -> None:
        """`log`: of a command, which tells it at once, and to a file or pipe too."""
        self._began = time.monotonic()
        self._reader = NOBODY if quiet else _reader(log)
        self.text = ""  # as it was told last
        self._news = ""
        self._above: str | None = None  # a sentence on the lease in which this process runs, once it was looked up

    @property
    def tell(self) -> Callable[[StillWaiting], None] | None:
        """What `client.acquire` calls now and then; None when nobody is to be told."""
        return None if self._reader == NOBODY else self._tell

    def _tell(self, waiting: StillWaiting) -> None:
        if not self._is_told():
            return
        if self._above is None:
            self._above = _lease_above()
        self.say(f"{waiting['id']} waits, number {waiting['place']} in the queue.{self._above}", waiting["why"])

    def _is_told(self) -> bool:
        return self._reader == LOG or (self._reader != NOBODY and time.monotonic() - self._began >= SILENT_FOR)

    def say(self, what: str, why: str = "") -> None:
        if not self._is_told():
            return
        from gpulease.render.terminal import clean

        self.text = clean(f"{what} {why}").rstrip()
        if self._reader == TERMINAL:
            return _screen.show(self)
        # Only what is news: the place; the reason's estimate changes all the time.
        before, self._news = self._news, what
        if self._news != before:
            _write(f"gpulease: {self.text}\n")

    def end(self, devices: str | None = None) -> None:
        """`devices`: the labels of what was granted; None when nothing was."""
        if not self.text:
            return
        if devices is None or self._reader == LOG:
            return _screen.remove(self)
        from gpulease.model.quantities import span_text

        _screen.remove(self, f"gpulease: got GPU {devices} after {span_text(time.monotonic() - self._began)}\n")


def _lease_above() -> str:
    """Who waits for what his own lease holds waits without end, and would not think of it."""
    id, devices = os.environ.get("GPULEASE_LEASE"), os.environ.get("GPULEASE_DEVICES")
    if not id or not devices:
        return ""
    from gpulease.client.connection import ask
    from gpulease.errors import GpuleaseError
    from gpulease.model.job_selection import ranges

    try:
        lease = ask("explain", start=False, id=id)["lease"]
    except (GpuleaseError, OSError):
        return ""  # it has ended, and the variable stayed
    labels = devices.split(",")
    if lease is None or lease["labels"] != labels:
        return ""
    shown = ranges(map(int, labels)) if all(label.isdecimal() for label in labels) else devices
    return f" Its own lease {id} holds GPU {shown}."


def _reader(log: bool) -> str:
    if sys.stderr is None:
        return NOBODY
    if in_notebook():  # its stderr is no terminal
        return LINES
    if sys.stderr.isatty():
        return LINES if os.environ.get("TERM") == "dumb" else TERMINAL
    return LOG if log else NOBODY


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class _Screen:
    """The one line of this process's terminal, for all of its threads."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """A forked child waits for nothing yet, and another thread of its parent's may have held the lock."""
        self._lock = allocate_lock()
        self._waiting: list[WaitNotice] = []
        self._drawn = ""
        self._instead: list[Callable[[str], None]] = []  # progress bars that have the terminal, and show the text

    def show(self, waiting: WaitNotice) -> None:
        with self._lock:
            if waiting not in self._waiting:
                self._waiting.append(waiting)
            self._draw()

    def remove(self, waiting: WaitNotice, last: str = "") -> None:
        """`last`: a line that stays."""
        with self._lock:
            self._waiting = [other for other in self._waiting if other is not waiting]
            if last:
                _write(f"\r\x1b[K{last}" if self._drawn else last)
                self._drawn = ""
            self._draw()

    def give_to(self, show: Callable[[str], None]) -> None:
        with self._lock:
            if self._drawn:
                self._drawn = ""
                _write("\r\x1b[K")
            self._instead.append(show)

    def take_from(self, show: Callable[[str], None]) -> None:
        with self._lock:
            self._instead = [other for other in self._instead if other != show]

    def _draw(self) -> None:
        more = f"{len(self._waiting)} requests wait; " if len(self._waiting) > 1 else ""
        text = f"{more}{self._waiting[0].text}" if self._waiting else ""
        if self._instead:
            self._instead[-1](text)
        elif text != self._drawn:
            self._drawn = text
            _write(f"\r\x1b[K{_fitting(f'gpulease: {text}') if text else ''}")


def _fitting(text: str) -> str:
    from gpulease.render.terminal import Terminal, fit

    terminal = Terminal(sys.stderr)
    return fit(text, terminal.width - 1, terminal).rstrip()


def _write(text: str) -> None:
    try:
        print(text, end="", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # it was closed, or nobody reads it


_screen = _Screen()


def show_instead(show: Callable[[str], None]) -> Callable[[], None]:
    """Have `show` called with what would be the line on the terminal, until the result is called."""
    _screen.give_to(show)
    return lambda: _screen.take_from(show)
