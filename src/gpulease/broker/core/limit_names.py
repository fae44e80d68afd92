"""Limits whose user or group is not known here: mostly a slip, but accounts may come later, so it is only said."""

from __future__ import annotations

from gpulease.broker.core.turn import Turn
from gpulease.errors import BrokerUnavailable
from gpulease.planner import Limit


def unknown_names(turn: Turn) -> list[str]:
    """A sentence for each of them."""
    unknown = [_unknown(turn, limit) for limit in turn.state.policy.limits]
    return [f"There is no {who} here now, of whom the limits speak." for who in unknown if who is not None]


def _unknown(turn: Turn, limit: Limit) -> str | None:
    if limit.scope == "priority" or limit.name == "*":
        return None
    try:
        if limit.scope == "user" and not limit.name.startswith("@"):
            return None if turn.world.uid_of(limit.name) is not None else f"user {limit.name[:40]!r}"
        group = limit.name.removeprefix("@") if limit.scope == "user" else limit.name
        return None if turn.world.has_group(group) else f"group {group[:40]!r}"
    except BrokerUnavailable:
        return None  # nobody knows
