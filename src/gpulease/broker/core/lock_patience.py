"""Who keeps safe-gpu's lock is waited for, but not for ever: any user of the host can hold it.

The time is counted by user, not by process, since one process may follow another. Each user may take
`safe-gpu-patience` of the line's time between two checks; then that user is passed by for an hour, and is named in the
events and in the status. While somebody holds the lock no other user of safe-gpu chooses, so that a grant without it
can only collide with the holder's choice.
"""

from __future__ import annotations

from gpulease.broker.core.events import CheckRefused
from gpulease.broker.core.state import State
from gpulease.broker.core.turn import Turn
from gpulease.broker.core.values import Blocker

IGNORED_FOR = 3600.0  # seconds that somebody is passed by
GAP = 1.0  # seconds between two refusals that count as one
FORGIVEN = 0.1  # seconds that are forgiven for each in which nobody was kept waiting


def lock_held(turn: Turn, event: CheckRefused) -> None:
    """Somebody holds the lock while others want a device."""
    state, patience = turn.state, turn.state.settings.safe_gpu_patience
    before = state.devices.blockers.get(event.user, Blocker(turn.now))
    since = turn.now - before.seen
    spent = before.spent + since if since <= GAP else max(0.0, before.spent - since * FORGIVEN)
    if spent < patience:
        return state.devices.blockers.put(event.user, Blocker(turn.now, spent))
    why = f"kept safe-gpu's lock for {patience:g} s, and is not waited for during the next hour"
    state.record(turn.now, "passed-by", user=event.user, pid=event.pid, devices=[], why=why)
    return state.devices.blockers.put(event.user, Blocker(turn.now, ignored_since=turn.now))


def lock_taken(turn: Turn) -> None:
    """A check was taken, so whoever held the lock let go in time, unless somebody is passed by."""
    blockers = turn.state.devices.blockers
    if blockers and not ignored_users(turn.state, turn.now):
        for user in list(blockers):
            blockers.drop(user)


def ignored_users(state: State, now: float) -> frozenset[str]:
    """Users whose hold on the lock counts for nothing now."""
    return frozenset(
        user
        for user, one in state.devices.blockers.items()
        if one.ignored_since and now - one.ignored_since < IGNORED_FOR
    )
