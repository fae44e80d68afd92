"""When an order of the administrator's own is asked for, and what becomes of the answer.

Nothing waits for it: plans use the order that came last, and without one the built-in order goes on. A function that
hangs, raises or returns nonsense is asked again ever more seldom, and costs nothing but its own say.
"""

from __future__ import annotations

from math import inf

from gpulease.broker.core.events import Ordered
from gpulease.broker.core.instructions import AskOrder, WriteLog
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import OwnOrder
from gpulease.planner.fairness import Standing
from gpulease.planner.order import entries, ranked, wrong_with

INTERVAL = 1.0  # seconds between questions while the line changes
AGAIN = 10.0  # seconds after which the same line is asked about again: who waits grows older
LONGEST_PAUSE = 300.0  # seconds before a function that failed is asked again


def ask(turn: Turn) -> None:
    """Ask about the line, if it is time."""
    state = turn.state
    function, own = state.settings.order, state.requests.own_order
    if own.function != function:
        own = _changed(turn, function)
    if not function or own.asked is not None or len(state.requests.line) < 2:
        return
    moment = _next(own, state.revision)
    if moment > turn.now:
        if moment < own.due or own.due <= turn.now:
            state.requests.own_order = own._replace(due=moment)
            turn.alarm(moment - turn.now, "order", "next")
        return
    _ask(turn, function)


def _next(own: OwnOrder, revision: int) -> float:
    """When to ask next."""
    return max(own.not_before, own.asked_at + (AGAIN if own.revision == revision else INTERVAL))


def _changed(turn: Turn, function: str) -> OwnOrder:
    """Another function, or none: what the old one said is nothing any more."""
    own = OwnOrder(function)
    turn.state.requests.own_order = own
    turn.emit(AskOrder(function, turn.now, ()))
    return own


def _ask(turn: Turn, function: str) -> None:
    state = turn.state
    requests, usage = state.requests, state.learned.usage
    used = Standing(usage, requests.leases.values(), state.devices.by_uuid, state.policy, turn.now).totals
    rows = tuple(entries(requests.line, used, turn.now))
    asked = tuple(row.id for row in rows) if len(rows) > 1 else None
    requests.own_order = requests.own_order._replace(asked=asked, asked_at=turn.now, revision=state.revision)
    if asked is not None:
        turn.emit(AskOrder(function, turn.now, rows))


def ordered(turn: Turn, event: Ordered) -> None:
    state, own = turn.state, turn.state.requests.own_order
    if event.function != own.function or own.asked is None:
        return
    trouble = event.trouble or wrong_with(own.asked, event.told)
    if trouble is not None:
        return _failed(turn, trouble)
    ids, before = tuple(event.told), state.revision
    ranking = ranked(state.requests.line, ids)
    answered = own._replace(ids=ids, ranking=ranking, asked=None, failures=0, trouble=None)
    state.requests.own_order = answered
    if own.trouble is not None:
        turn.emit(WriteLog(f"policy.order {own.function} answers again"))
    if own.revision == before:  # what it changed itself is no reason to ask it again
        state.requests.own_order = answered._replace(revision=state.revision)
    return None


def _failed(turn: Turn, trouble: str) -> None:
    own = turn.state.requests.own_order
    failures = own.failures + 1
    pause = min(LONGEST_PAUSE, 0.5 * 2.0 ** min(failures, 20))
    failed = own._replace(ids=(), ranking=None, asked=None, failures=failures, trouble=trouble, due=inf)
    failed = failed._replace(not_before=turn.now + pause)
    turn.state.requests.own_order = failed
    if trouble != own.trouble:
        turn.emit(WriteLog(f"policy.order {own.function} is not followed: {trouble}"))


def trouble_of(own: OwnOrder) -> str | None:
    """What `gpulease doctor` and `gpulease set` say."""
    if own.trouble is None:
        return None
    return f"The function {own.function} of policy.order is not followed: {own.trouble}."
