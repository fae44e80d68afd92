"""PURE: the merged status of several hosts as rows, and as the table that `status --hosts`, the page and `top` show."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from gpulease.render.terminal import Terminal

STATES = {
    "free": ".", "leased": "L", "shared": "S", "outside": "O", "draining": "D", "excluded": "X", "lost": "!",
    "unknown": "?",
}  # fmt: skip
LEGEND = ". free, L leased, S shared, O outside, D draining, X excluded, ! lost, ? unknown"
HEADINGS = ("HOST", "GPUS", "FREE", "WAIT", "STATE", "USED BY")
MAX_NAMED = 3  # users that are named
LEAST = 30  # columns for the last cell, which says what is wrong


def status_lines(rows: Sequence[dict[str, Any]], terminal: Terminal, now: float) -> list[str]:
    """Of `hosts[]`: a heading, one line a host, and what the letters mean."""
    lines = table_lines(rows, terminal, now)
    shown = [
        line if row["trouble"] is None else terminal.paint(line, "red")
        for row, line in zip(rows, lines[1:], strict=True)
    ]
    return [*simulated_line(rows), lines[0], *shown, terminal.paint(LEGEND, "dim")]


def table_lines(rows: Iterable[dict[str, Any]], terminal: Terminal, now: float) -> list[str]:
    from gpulease.render.terminal import plain_table

    return plain_table([HEADINGS, *(_cells(row, now) for row in rows)], terminal, least=LEAST)


def simulated_line(rows: Iterable[dict[str, Any]]) -> list[str]:
    simulated = [row["host"] for row in rows if row["answer"] and row["answer"]["simulated"]]
    return [f"SIMULATED GPUs: {', '.join(simulated)}"] if simulated else []


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    answer = row["answer"]
    if answer is None:
        return (row["host"], "-", "-", "-", "-", trouble_text(row, now))
    letters = "".join(STATES.get(one["state"], "?") for one in answer["devices"])
    return (row["host"], models(answer) or "none", free(answer), str(answer["line_length"]), letters, users(answer))


def trouble_text(row: dict[str, Any], now: float) -> str:
    """Why it did not answer, and for how long it has not."""
    since = row.get("absent_since")
    if since is None:
        return str(row["trouble"])
    from gpulease.model.quantities import span_text

    return f"{row['trouble']} Silent for {span_text(max(0.0, now - since))}."


def models(answer: dict[str, Any]) -> str:
    from gpulease.render.status import short_name

    names = [short_name(one["name"]) for one in answer["devices"]]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def free(answer: dict[str, Any]) -> str:
    """How many; not a number while nobody can tell."""
    states = [one["state"] for one in answer["devices"]]
    return "?" if "unknown" in states else str(states.count("free"))


def users(answer: dict[str, Any]) -> str:
    """Who holds how many, and what is wrong there."""
    held: dict[str, int] = {}
    for lease in answer["leases"]:
        held[lease["user"]] = held.get(lease["user"], 0) + len(lease["labels"])
    parts = [f"{user} {held[user]}" for user in sorted(held, key=lambda user: (-held[user], user))[:MAX_NAMED]]
    more = len(held) - MAX_NAMED
    parts += [f"{more} more users"] if more > 0 else []
    return ", ".join([*parts, *([str(answer["trouble"])] if answer.get("trouble") else [])])
