"""When a request would start that nobody has made: the planner is asked as if it waited, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpulease.broker.core import learned, status
from gpulease.broker.core.events import Received
from gpulease.broker.core.grants import fresh_plan
from gpulease.broker.core.limits import allowance, check_request, impossible
from gpulease.broker.core.turn import Turn
from gpulease.errors import UsageError
from gpulease.model.device_selection import resolve
from gpulease.model.request import read_request
from gpulease.model.store import Document
from gpulease.model.values import Waiting
from gpulease.planner import Plan
from gpulease.planner.forecast import NO_FORECAST, Start
from gpulease.protocol.messages import KINDS, ExplainRequest

MOST = 64  # alike that are foreseen at once; the planner looks no further ahead
NOW = "It would start now."


def estimate_starts(turn: Turn, event: Received) -> Document:
    """Of so many alike: in how many seconds each would start, None being nobody knows; of the first also why not now.

    Seconds, and no moments: hosts are compared by them, and their clocks differ.
    """
    state, peer = turn.state, event.peer
    message: ExplainRequest = event.message
    kind, asked = message.get("kind") or "run", message.get("count")
    count = 1 if asked is None else asked
    if kind not in (*KINDS, "job"):
        raise UsageError(f"There is no kind of lease {kind[:40]!r}.")
    if not 1 <= count <= MOST:
        raise UsageError(f"{count} requests were asked about.", f"Ask about 1 to {MOST}.")
    if state.devices.sample is None and state.devices.trouble is not None:
        raise state.devices.trouble
    wanted = read_request(message.get("request") or {}, 0)._replace(not_before=None)
    request = resolve(wanted, list(state.devices.by_uuid.values()))
    check_request(allowance(state, peer.user, peer.groups), request)
    since = state.requests.since(turn.now)
    expected = learned.expected(turn, peer.user, request)
    one = Waiting("?0", request, peer.user, peer.uid, since, peer.groups, kind, expected=expected)
    copies = [one._replace(id=f"?{number}", since=since + number * 1e-6) for number in range(count)]
    never = impossible(turn, copies[0]._replace(id="probe", since=0.0))
    with _in_line(turn, copies) as decided:
        granted = {grant.id for grant in decided.grants}
        starts = [0.0 if one.id in granted else _from_now(turn, decided.expected_start(one.id)) for one in copies]
        estimate = _first(turn, decided, copies[0].id, copies[0].id in granted)
    return {
        **estimate,
        "possible": never is None,
        "starts": [] if never else starts,
        "load": _load(turn),
        "gpus": len(state.devices.by_uuid),
    }


@contextmanager
def _in_line(turn: Turn, copies: list[Waiting]) -> Iterator[Plan]:
    """The plan as if they waited, as long as it is asked. The state's revision stays: nobody else sees them."""
    line = turn.state.requests.line
    added = []
    try:
        for one in copies:
            line.add(one)
            added.append(one.id)
        yield fresh_plan(turn)
    finally:
        for id in added:
            line.remove(id)


def _first(turn: Turn, decided: Plan, id: str, fits: bool) -> Document:
    base: Document = {"id": "", "lease": None, "place": 1 + turn.state.requests.line.ahead(id)}
    if fits:
        why = {"code": "fits", "why": NOW, "why_short": "", **NO_FORECAST.moments, "expected_start": turn.now}
        return {**base, **why, "devices": []}
    reason = decided.reason(id)
    why = {"code": reason.code, "why": reason.sentence, "why_short": reason.short}
    rows = status.verdict_rows(turn.state, decided.explain(id))
    return {**base, **why, **decided.forecast(id)[0].moments, "devices": rows}


def _from_now(turn: Turn, start: Start | None) -> float | None:
    return None if start is None else max(0.0, start.likely - turn.now)


def _load(turn: Turn) -> float:
    """GPUs that are held or waited for, by the GPUs that are here; of two hosts the lesser one is taken."""
    state = turn.state
    held = sum(len(lease.devices) for lease in state.requests.leases.values())
    wanted = sum(
        count * (1 if family.share else tier.least[family])
        for tier in state.requests.line.tiers.values()
        for family, count in tier.counts.items()
    )
    return round((held + wanted) / max(1, len(state.devices.by_uuid)), 3)
