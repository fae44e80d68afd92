"""Which of the recorded events somebody wants to see: whose, on which GPUs, of which use, from when to when."""

from __future__ import annotations

import time

from gpulease.errors import UsageError
from gpulease.model.fields import seconds, texts
from gpulease.model.job_selection import line_id
from gpulease.model.quantities import parse_moment, parse_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpulease.model.job_selection import JobId

DAY = 86400.0


def ago(value: Any, said: str) -> float:
    """How many seconds before now: a length of time as `2h`; or a moment that has been, as `08:30` or a date."""
    if not isinstance(value, str):
        return seconds(value, said)
    try:
        return parse_seconds(value)
    except UsageError:
        now = time.time()
        try:
            moment = parse_moment(value, now)
        except UsageError:
            raise UsageError(f"{value[:40]!r} is no time.", "Write 2h, 1d, 08:30 or 2026-12-24T22:30.") from None
        return max(0.0, now - (moment - DAY if moment > now and len(value) <= len("22:30") else moment))


class EventChoice:
    def __init__(
        self, until: float | None, user: str | None, gpus: list[str], kind: str | None, job: str | None
    ) -> None:
        self.until, self.user, self.gpus, self.kind, self.job = until, user, gpus, kind, job

    @classmethod
    def of(cls, until: Any, user: str | None, gpu: Any, kind: str | None, job: JobId | None) -> EventChoice:
        before = None if until is None else time.time() - ago(until, "until")
        gpus = [] if gpu is None else texts(gpu, "The GPU")
        return cls(before, user, gpus, kind, None if job is None else line_id(job))

    @property
    def narrows(self) -> bool:
        return bool(self.until is not None or self.user or self.gpus or self.kind or self.job)

    def has(self, event: Mapping[str, Any]) -> bool:
        """A field that an event does not have is not the one that was asked for."""
        return (
            (self.until is None or event["time"] <= self.until)
            and self.user in (None, event.get("user"))
            and self.kind in (None, event.get("kind"))
            and self.job in (None, event.get("id"))
            and (not self.gpus or any(self._is_on(label) for label in event.get("devices", ())))
        )

    def _is_on(self, label: str) -> bool:
        """A GPU stands for its MIG instances too."""
        return label in self.gpus or label.partition(":")[0] in self.gpus
