"""Mistakes of ours in the log: each in full, and the same one once a minute at most, however often it is provoked."""

from __future__ import annotations

import sys
import time
import traceback  # now: when it is needed there may be no descriptor left to load it
from collections.abc import Callable

PAUSE = 60.0  # seconds between two lines about the same mistake
MOST = 100  # mistakes that are told apart


class ExceptionLog:
    def __init__(self, log: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._logged: dict[str, tuple[float, int]] = {}  # by place: when it was told, and how often it came since

    def log_exception(self) -> None:
        """Of the exception that is being handled."""
        place, now = _place(), self._clock()
        if place not in self._logged and len(self._logged) >= MOST:
            place = "elsewhere"
        logged_at, since = self._logged.get(place, (-PAUSE, 0))
        if now - logged_at < PAUSE:
            self._logged[place] = (logged_at, since + 1)
            return
        self._logged[place] = (now, 0)
        again = f"(and {since} times in the last while) " if since else ""
        self._log(again + traceback.format_exc())


def _place() -> str:
    kind, _, trace = sys.exc_info()
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
    return f"{kind and kind.__name__} {where}"
