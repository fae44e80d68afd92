"""PURE: the merged status of several hosts as rows, and as the table that `status --hosts`, the page and `top` show."""

from __future__ import annotations

from gpulease.model.quantities import folded_names

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


MAX_DEVICES = 64  # that are shown one by one
MAX_ROWS = 16  # of `explain` that are shown one by one
NODE_HEADINGS = ("NODE", "GPUS", "FREE", "STATE", "USED BY")
LEAST_NODES = 30  # columns for the last cell


def node_lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from gpulease.render.terminal import plain_table

    users = {lease["id"]: lease["user"] for lease in document["leases"]}
    nodes: dict[str, list[dict[str, Any]]] = {}
    for device in document["devices"]:
        nodes.setdefault(device["label"].rpartition(":")[0], []).append(device)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, devices in nodes.items():
        alike.setdefault(_node_cells(devices, users), []).append(name)
    rows = [(folded_names(names), *cells) for cells, names in alike.items()]
    return [*plain_table([NODE_HEADINGS, *rows], terminal, least=LEAST_NODES), terminal.paint(LEGEND, "dim")]


def _node_cells(devices: list[dict[str, Any]], users: dict[str, str]) -> tuple[str, ...]:
    """Of one node: models, free ones, a letter for each, and who holds how many or what is wrong."""
    held: dict[str, int] = {}
    for device in devices:
        for user in {users.get(lease, "?") for lease in device["leases"]}:
            held[user] = held.get(user, 0) + 1
    parts = [f"{user} {held[user]}" for user in sorted(held, key=lambda user: (-held[user], user))[:MAX_NAMED]]
    parts += [f"{len(held) - MAX_NAMED} more users"] if len(held) > MAX_NAMED else []
    troubles = (device["lost"] or (device["note"] if device["state"] == "excluded" else None) for device in devices)
    parts += dict.fromkeys(text.partition(" is ")[2] or text for text in troubles if text)
    letters = "".join(STATES.get(device["state"], "?") for device in devices)
    free = sum(device["state"] == "free" for device in devices)
    return models({"devices": devices}), str(free), letters, ", ".join(parts)


def joined(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Nodes with the reason of each: those with the same one share a row, where there are many."""
    if len(rows) <= MAX_ROWS:
        return list(rows)
    alike: dict[str, list[str]] = {}
    for name, why in rows:
        alike.setdefault(why.replace(f"node {name} ", "it "), []).append(name)
    return [(folded_names(names), why) for why, names in alike.items()]
