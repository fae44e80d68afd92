"""PURE: what a user can get notices of, and which of it was asked for.

Not here: when it happens (broker/core/notices.py), what it says (words.py) and how it is sent (channels.py).
"""

from __future__ import annotations

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

EVENTS = {
    "turn": "GPUs were granted after a wait: a job began, or `run` or `get` got them",
    "ended": "a job is complete",
    "failed": "a job failed, was lost, could not start, or was ended by somebody else or by its time limit",
    "out-of-memory": "a job ran out of GPU memory",
    "lease-ending": "a timed lease or a reservation is about to end, or somebody else ended a lease",
    "gpu-broken": "the driver lost a GPU of yours; the user who runs the broker hears of every GPU",
    "gpu-used": "somebody else uses a GPU of yours, without a lease",
}
OF_JOBS = ("turn", "ended", "failed", "out-of-memory", "gpu-broken", "gpu-used")
USUAL = (
    "turn",
    "failed",
    "out-of-memory",
    "lease-ending",
    "gpu-broken",
    "gpu-used",
)  # without being asked for by a job
ALL, NONE = "all", "none"


def read_events(given: str | Iterable[str], said: str) -> tuple[str, ...]:
    """The events that were named, in the order of `EVENTS`; `all` and `none` are understood."""
    named = given.replace(",", " ").split() if isinstance(given, str) else list(given)
    named = named or [""]
    wrong = next((one for one in named if one not in (*EVENTS, ALL, NONE)), None)
    if wrong is not None:
        there = ", ".join((*EVENTS, ALL, NONE))
        raise UsageError(f"{said} cannot be {str(wrong)[:40]!r}.", f"Give some of: {there}.")
    if len(named) > 1 and NONE in named:
        raise UsageError(f"{said} is `none` and more.", "Leave one of the two out.")
    return tuple(EVENTS) if ALL in named else tuple(one for one in EVENTS if one in named)


def of_job(given: bool | str | Iterable[str] | None, said: str) -> list[str] | None:
    """What a job's own `notify` means: True is everything that happens to it; None is as its user chose."""
    if given is None or given is False:
        return None
    return list(OF_JOBS if given is True else read_events(given, said))
