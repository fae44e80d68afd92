"""PURE: what one user is shown of another's, where `hide-commands` is on: that and how, never what.

Commands, names, folders, logs and notes are hidden; users, pids, devices, memory, times and states are not.
"""

from __future__ import annotations

from gpulease.model.peer import Peer
from gpulease.model.store import Document
from gpulease.planner.settings import Settings

HIDDEN = "(hidden)"


def viewer(settings: Settings, peer: Peer) -> str | None:
    """The user by whose eyes rows are shown; None for one who sees everything."""
    return peer.user if settings.hide_commands and peer.uid != 0 else None


def of_device(row: Document, seen_by: str | None) -> Document:
    if seen_by is None or not row["processes"]:
        return row
    shown = [one if one["user"] == seen_by else {**one, "command": HIDDEN} for one in row["processes"]]
    return {**row, "processes": shown}


def of_lease(row: Document, seen_by: str | None) -> Document:
    """Of a request in the line too."""
    return row if seen_by in (None, row["user"]) else {**row, **dict.fromkeys({"note", "job"} & row.keys())}


def of_job(row: Document, seen_by: str | None) -> Document:
    if seen_by in (None, row["user"]):
        return row
    return {**row, "command": [HIDDEN], "cwd": "", "log": "", "name": None, "note": None, "why": None, "script": None}


def of_event(row: Document, seen_by: str | None) -> Document:
    """Why a job ended may quote its command; that it ended, and how, is said before the colon."""
    if seen_by in (None, row.get("user")) or "kind" not in row:
        return row
    why = row.get("why")
    if row["kind"] != "job" or why is None:
        return {**row, "note": None}
    return {**row, "note": None, "why": why.partition(":")[0] if why.startswith("job ") else None}
