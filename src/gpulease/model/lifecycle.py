"""The states of a lease and of a job, as one literal table: (state, event) -> (state, effects).

`python tools/lifecycle_page.py` draws the diagrams of `gpulease help lifecycle` from the tables.
Not here: doing anything. An effect is a name; broker/core/leases.py and broker/core/jobs.py have a function for each,
and run them in the table's order. An impossible transition raises with the history that led to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Effects = tuple[str, ...]
Table = Mapping[tuple[str, str], tuple[str, Effects]]

# A request and the lease that it becomes. A request is asked while nobody was told that it waits, and is on disk only
# from then on. A lease is granted while the client has not said that its owner knows of it.
LEASE: Table = {
    ("new", "ask"): ("asked", ("enter-line", "watch-owner")),
    ("asked", "wait"): ("waiting", ("write-request", "tell-waiting")),
    ("asked", "refuse"): ("left", ("leave-line", "tell-refused")),
    ("asked", "leave"): ("left", ("leave-line",)),
    ("asked", "grant"): ("held", ("leave-line", "hold", "write-lease", "record-granted", "tell-granted")),
    ("asked", "grant-to-claim"): ("granted", ("leave-line", "hold", "write-lease", "record-granted", "tell-granted")),
    ("waiting", "refuse"): ("left", ("leave-line", "tell-refused")),
    ("waiting", "leave"): ("left", ("leave-line",)),
    ("waiting", "grant"): ("held", ("leave-line", "hold", "write-lease", "record-granted", "tell-granted")),
    ("waiting", "grant-to-claim"): ("granted", ("leave-line", "hold", "write-lease", "record-granted", "tell-granted")),
    ("granted", "claim"): ("held", ("claim", "write-lease")),
    ("granted", "renew"): ("granted", ("change", "write-lease", "record-renewed", "set-alarm")),
    ("granted", "end"): ("ended", ("drop-lease", "check-devices", "charge-usage", "record-ended")),
    ("held", "renew"): ("held", ("change", "write-lease", "record-renewed", "set-alarm")),
    ("held", "end"): ("ended", ("drop-lease", "check-devices", "charge-usage", "record-ended")),
}

# A job: held until somebody lets it go, waiting, running, paused, and one of five ends.
JOB: Table = {
    ("new", "add"): ("waiting", ("write", "join-line")),
    ("new", "add-held"): ("held", ("write",)),
    ("held", "let-go"): ("waiting", ("write", "join-line")),
    ("held", "edit"): ("held", ("write",)),
    ("held", "kill"): ("killed", ("write", "announce")),
    ("waiting", "edit"): ("waiting", ("leave-line", "write", "join-line")),
    ("waiting", "start"): ("running", ("leave-line", "write", "hold-lease", "launch")),
    ("waiting", "kill"): ("killed", ("leave-line", "write", "announce")),
    ("running", "order-end"): ("running", ("write", "end-tree")),
    ("running", "cannot-start"): ("invalid", ("end-lease", "write", "announce")),
    ("running", "pause"): ("paused", ("write", "stop-tree")),
    ("running", "exit-zero"): ("complete", ("end-lease", "write", "announce")),
    ("running", "exit-nonzero"): ("failed", ("end-lease", "write", "announce")),
    ("running", "retry-after-failure"): ("waiting", ("end-lease", "write", "join-line")),
    ("running", "put-back"): ("waiting", ("end-lease", "write", "join-line")),
    ("running", "killed"): ("killed", ("end-lease", "write", "announce")),
    ("running", "lost"): ("lost", ("end-lease", "write", "announce")),
    ("paused", "order-end"): ("paused", ("write", "end-tree")),
    ("paused", "cannot-start"): ("invalid", ("end-lease", "write", "announce")),
    ("paused", "retry-after-failure"): ("waiting", ("end-lease", "write", "join-line")),
    ("paused", "put-back"): ("held", ("end-lease", "write")),
    ("paused", "resume"): ("running", ("write", "continue-tree")),
    ("paused", "exit-zero"): ("complete", ("end-lease", "write", "announce")),
    ("paused", "exit-nonzero"): ("failed", ("end-lease", "write", "announce")),
    ("paused", "killed"): ("killed", ("end-lease", "write", "announce")),
    ("paused", "lost"): ("lost", ("end-lease", "write", "announce")),
    ("complete", "retry"): ("waiting", ("write", "join-line")),
    ("failed", "retry"): ("waiting", ("write", "join-line")),
    ("invalid", "retry"): ("waiting", ("write", "join-line")),
    ("killed", "retry"): ("waiting", ("write", "join-line")),
    ("lost", "retry"): ("waiting", ("write", "join-line")),
}

START = "new"
LEASE_ENDS = frozenset({"left", "ended"})
JOB_ENDS = frozenset({"complete", "failed", "invalid", "killed", "lost"})


class Step(NamedTuple):
    """One transition that happened."""

    time: float
    state: str
    event: str
    next: str


class ImpossibleTransition(Exception):
    """An event came that the table does not know in this state: a bug, told with its story."""

    def __init__(self, what: str, state: str, event: str, history: tuple[Step, ...]) -> None:
        story = "; ".join(f"at {step.time:g} {step.event}: {step.state} -> {step.next}" for step in history)
        super().__init__(f"{what} in state {state!r} cannot {event!r}. History: {story or 'none'}.")
        self.what = what
        self.state = state
        self.event = event
        self.history = history


REMEMBERED = 20  # steps; enough to see what led to an impossible one


def transition(table: Table, what: str, state: str, event: str, history: tuple[Step, ...] = ()) -> tuple[str, Effects]:
    """The state after `event`, and the effects that the caller must carry out."""
    found = table.get((state, event))
    if found is None:
        raise ImpossibleTransition(what, state, event, history)
    return found
