"""PURE: the devices of many nodes as one row a node; nodes that are alike share a row."""

from __future__ import annotations

from gpulease.model.quantities import folded_names
from gpulease.render.hosts import LEGEND, MAX_NAMED, STATES, models

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from gpulease.render.terminal import Terminal

MAX_DEVICES = 64  # that are shown one by one
MAX_ROWS = 16  # of `explain` that are shown one by one
HEADINGS = ("NODE", "GPUS", "FREE", "STATE", "USED BY")
LEAST = 30  # columns for the last cell


def node_lines(document: dict[str, Any], terminal: Terminal) -> list[str]:
    from gpulease.render.terminal import plain_table

    users = {lease["id"]: lease["user"] for lease in document["leases"]}
    nodes: dict[str, list[dict[str, Any]]] = {}
    for device in document["devices"]:
        nodes.setdefault(device["label"].rpartition(":")[0], []).append(device)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, devices in nodes.items():
        alike.setdefault(_cells(devices, users), []).append(name)
    rows = [(folded_names(names), *cells) for cells, names in alike.items()]
    return [*plain_table([HEADINGS, *rows], terminal, least=LEAST), terminal.paint(LEGEND, "dim")]


def _cells(devices: list[dict[str, Any]], users: dict[str, str]) -> tuple[str, ...]:
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
