"""A deadline around a probe: a driver that hangs gives an error, and hangs nobody.

The call runs in a daemon thread, since a thread inside a C call cannot be stopped, only left behind.
While one call hangs, later ones fail at once instead of adding to the pile.
"""

from __future__ import annotations

import threading

from gpulease.errors import DriverHangs
from gpulease.model.values import Sample
from gpulease.system.probe import Probe

DEFAULT_SECONDS = 5.0


class WithDeadline:
    def __init__(self, probe: Probe, seconds: float = DEFAULT_SECONDS) -> None:
        self._probe = probe
        self._seconds = seconds
        self._hanging: threading.Thread | None = None

    def snapshot(self) -> Sample:
        if self._hanging is not None and self._hanging.is_alive():
            raise self._error("still does not answer a call made before")
        outcome: list[Sample | BaseException] = []
        thread = threading.Thread(target=self._call, args=(outcome,), daemon=True, name="gpulease-probe")
        thread.start()
        thread.join(self._seconds)
        if not outcome:
            self._hanging = thread
            raise self._error(f"did not answer within {self._seconds:g} s")
        if isinstance(outcome[0], BaseException):
            raise outcome[0]
        return outcome[0]

    def _call(self, outcome: list[Sample | BaseException]) -> None:
        try:
            outcome.append(self._probe.snapshot())
        except BaseException as error:  # carried over to the caller's thread
            outcome.append(error)

    @staticmethod
    def _error(what: str) -> DriverHangs:
        return DriverHangs(f"The GPU driver {what}.")
