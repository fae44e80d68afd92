"""PURE: what jobs held of Slurm's GPUs, as the answer to `usage`. How busy they were, Slurm does not tell."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from gpulease.protocol.messages import JobRow

UNKNOWN = "-"  # Slurm forgets which GPUs an ended job had
ENDED = ("complete", "failed", "killed", "lost", "invalid")


def usage_piece(
    jobs: list[JobRow], since: float | None, until: float | None, step: float, now: float
) -> dict[str, Any]:
    """All of it in one piece. Without accounting, only what was submitted from here and what Slurm still remembers."""
    begin, end = (now - 86400.0 if since is None else since), (now if until is None else until)
    meant = [row for row in jobs if row["started"] is not None and row["request"]["gpus"]]
    rows = [use for row in meant for use in _uses(row, begin, end, now)]
    counts = [_count(row) for row in meant if begin <= (row["started"] or 0.0) < end]
    about = {"since": begin, "until": end, "step": int(step), "now": now, "next": None}
    return {**about, "rows": rows, "counts": counts}


def _uses(row: JobRow, begin: float, end: float, now: float) -> list[dict[str, Any]]:
    started = max(row["started"] or 0.0, begin)
    held = min(row["ended"] or now, end) - started
    if held <= 0:
        return []
    devices = row["devices"] or [UNKNOWN] * row["request"]["gpus"]
    whose: dict[str, Any] = {"user": row["user"], "groups": [], "label": row["label"], "outside": False}
    times = {"time": started, "held": held, "known": 0.0, "busy": 0.0, "idle": 0.0}
    return [{**whose, **times, "device": device} for device in devices]


def _count(row: JobRow) -> dict[str, Any]:
    started = row["started"] or 0.0
    return {
        "time": started,
        "devices": row["devices"] or [UNKNOWN],
        "user": row["user"],
        "groups": [],
        "label": row["label"],
        "granted": 1,
        "waited": max(0.0, started - row["added"]),
        "jobs": {row["state"]: 1} if row["state"] in ENDED else {},
    }
