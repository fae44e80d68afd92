"""A thread that asks all hosts for their status again and again, while somebody looks: for the page and for `top`.

Each host's row is told as soon as it answers, so one that hangs keeps neither the others nor who looks waiting.
Not for: which hosts there are, and how one is asked (`hosts`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpulease.errors import GpuleaseError, in_words
from gpulease.hosts import hosts

Row = dict[str, Any]  # as `hosts[]` of `status --hosts --json`
EVERY = 10.0  # seconds between two rounds
UNKNOWN = "It has not answered yet."


class HostWatch:
    def __init__(self, names: Sequence[str], publish: Callable[[tuple[Row, ...]], None]) -> None:
        """`publish` is called by `start`, then in the watch's thread, with the rows of all in their order."""
        self._names, self._publish = names, publish
        self._rows = {name: unknown(name) for name in names}
        self._until = 0.0
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hosts", daemon=True)

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(self._rows[name] for name in self._names)

    def start(self) -> None:
        self._publish(self.rows)
        self._thread.start()

    def want(self, seconds: float) -> None:
        """Somebody looks now, and for so long; the first one begins a round."""
        self._until = max(self._until, time.monotonic() + seconds)
        self._wanted.set()

    def stop(self) -> None:
        """It is not waited for: a host that hangs would be waited for too."""
        self._stopped.set()
        self._wanted.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wanted.clear()  # before it is looked at, so that nobody who comes now is missed
            if time.monotonic() >= self._until:
                self._rows = {name: unknown(name) for name in self._names}  # what is old is not shown as new
                self._publish(self.rows)
                self._wanted.wait()
                continue
            self._ask()
            self._stopped.wait(EVERY)

    def _ask(self) -> None:
        calls = dict.fromkeys(self._names, ("status", "--json"))
        try:
            for answer in hosts.answers(calls):
                self._rows[answer.host] = answer.as_row()
                self._publish(self.rows)
        except (GpuleaseError, OSError) as error:  # none could be asked: no process more, a deadline that is no number
            trouble = error.what if isinstance(error, GpuleaseError) else f"It could not be asked: {in_words(error)}."
            self._rows = {name: {**unknown(name), "trouble": trouble} for name in self._names}
            self._publish(self.rows)


def unknown(host: str) -> Row:
    return {"host": host, "trouble": UNKNOWN, "next_step": None, "absent_since": None, "answer": None}


def is_known(row: Row) -> bool:
    return bool(row["trouble"] != UNKNOWN)
