"""When an order of the administrator's own is asked for, and what becomes of the answer.

Nothing waits for it: plans use the order that came last, and without one the built-in order goes on. A function that
hangs, raises or returns nonsense is asked again ever more seldom, and costs nothing but its own say.
"""

from __future__ import annotations

from gpulease.broker.core.events import OrderAnswered
from gpulease.broker.core.instructions import AskForOrder, WriteLog
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import CustomOrder
from gpulease.model.quantities import pause_after
from gpulease.planner.fairness import Standing
from gpulease.planner.order import entries, ranked, wrong_with

INTERVAL = 1.0  # seconds between questions while the line changes, and after a failure
AGAIN = 10.0  # seconds after which the same line is asked about again: who waits grows older
LONGEST_PAUSE = 300.0  # seconds before a function that failed is asked again


def ask(turn: Turn) -> None:
    """Ask the function about the queue, if it is time."""
    state = turn.state
    function, own = state.settings.order, state.requests.custom_order
    if own.function != function:  # what the old one said is nothing any more
        own = CustomOrder(function)
        state.requests.custom_order = own
        turn.emit(AskForOrder(function, turn.now, ()))
    if not function or own.asked or len(state.requests.line) < 2:
        return
    moment = max(own.not_before, own.asked_at + (AGAIN if own.revision == state.revision else INTERVAL))
    if moment > turn.now:
        return turn.alarm(moment - turn.now, "order", "next")
    used = Standing(
        state.learned.usage, state.requests.leases.values(), state.devices.by_uuid, state.policy, turn.now
    ).totals
    rows = tuple(entries(state.requests.line, used, turn.now))
    asked = tuple(row.id for row in rows) if len(rows) > 1 else ()
    state.requests.custom_order = own._replace(asked=asked, asked_at=turn.now, revision=state.revision)
    if asked:
        turn.emit(AskForOrder(function, turn.now, rows))


def ordered(turn: Turn, event: OrderAnswered) -> None:
    state, own = turn.state, turn.state.requests.custom_order
    if event.function != own.function or not own.asked:
        return
    trouble = event.trouble or wrong_with(own.asked, event.answer)
    ranking = () if trouble else ranked(state.requests.line, event.answer)
    failures = own.failures + 1 if trouble else 0
    not_before = turn.now + pause_after(failures, INTERVAL, LONGEST_PAUSE) if trouble else own.not_before
    unmoved = own.revision == state.revision
    after = own._replace(
        ranking=ranking, asked=(), failures=failures, trouble=trouble, not_before=not_before, revision=own.revision
    )
    state.requests.custom_order = after
    if unmoved:  # what it changed itself is no reason to ask it again
        state.requests.custom_order = after._replace(revision=state.revision)
    if trouble != own.trouble:
        what = f"is not followed: {trouble}" if trouble else "answers again"
        turn.emit(WriteLog(f"policy.order {own.function} {what}"))


def trouble_of(own: CustomOrder) -> str | None:
    """What `gpulease doctor` and `gpulease set` say."""
    return own.trouble and f"The function {own.function} of policy.order is not followed: {own.trouble}."
