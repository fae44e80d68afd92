"""The states of a lease, of a job and of a run, each as one literal table: (state, event) -> (state, effects).

`python tools/lifecycle_page.py` draws the diagrams of `gpulease help lifecycle` from the tables.
Not here: doing anything. An effect is a name; leases.py, jobs.py and runs.py of broker/core have a function for each,
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
RUN_ENDS = frozenset({"over"})
GRACE = "grace"  # the setting that has the seconds from TERM to KILL


class Phase(NamedTuple):
    """A state of a run: the question to its user's agent when it begins, and when an answer must be there.

    Asking again changes nothing, and an answer counts only in a phase in which it was asked for.
    """

    question: str | None
    deadline: float | str | None  # seconds, or a setting that has them; None: it may last


# A run of a job: what is done about its processes, until all are gone and it is known how it ended.
PHASES = {
    "launching": Phase("launch", 60.0),
    "doomed": Phase("cancel-launch", 30.0),  # told to end before its launch was answered
    "finding": Phase("find", 60.0),  # it may have begun; its agent or broker is a new one, or only its note tells more
    "finding-to-end": Phase("find", 30.0),
    "running": Phase("stop-or-continue", None),
    "terminating": Phase("term-tree", GRACE),
    "killing": Phase("kill-tree", 30.0),
    "reading": Phase("read-end", 30.0),  # all of it is gone
}

# A tree is `seen` while somebody will tell of its shell's end; later it is `left` or `gone`.
RUN: Table = {
    ("new", "launch"): ("launching", ()),
    ("new", "recover"): ("finding", ()),
    ("new", "recover-to-end"): ("finding-to-end", ()),
    ("launching", "begun"): ("running", ("adopt",)),
    ("launching", "launch-failed"): ("over", ("judge-launch",)),
    ("launching", "order-end"): ("doomed", ()),
    ("launching", "new-agent"): ("finding", ()),
    ("launching", "deadline"): ("launching", ("extend", "replace-agent")),
    ("doomed", "begun"): ("terminating", ("adopt",)),
    ("doomed", "launch-failed"): ("over", ("judge-launch",)),
    ("doomed", "new-agent"): ("finding-to-end", ()),
    ("doomed", "deadline"): ("doomed", ("extend", "force")),
    ("doomed", "vanished"): ("reading", ()),
    ("finding", "found-alive"): ("running", ("adopt",)),
    ("finding", "found-ended"): ("reading", ("note-found",)),
    ("finding", "found-dead"): ("killing", ("note-found",)),
    ("finding", "found-nothing"): ("over", ("judge-unfound",)),
    ("finding", "order-end"): ("finding-to-end", ()),
    ("finding", "new-agent"): ("finding", ("extend", "ask")),
    ("finding", "deadline"): ("finding", ("extend", "replace-agent")),
    ("finding-to-end", "found-alive"): ("terminating", ("adopt",)),
    ("finding-to-end", "found-ended"): ("killing", ("note-found",)),
    ("finding-to-end", "found-dead"): ("killing", ("note-found",)),
    ("finding-to-end", "found-nothing"): ("over", ("judge-unfound",)),
    ("finding-to-end", "new-agent"): ("finding-to-end", ("ask",)),
    ("finding-to-end", "deadline"): ("finding-to-end", ("extend", "force")),
    ("finding-to-end", "vanished"): ("reading", ()),
    ("running", "exited"): ("reading", ("note-end",)),  # what it left running goes on
    ("running", "shell-killed"): ("killing", ("note-end",)),
    ("running", "shell-gone"): ("finding", ()),
    ("running", "order-end"): ("terminating", ()),
    ("running", "pause-changed"): ("running", ("ask",)),
    ("running", "new-agent"): ("finding", ()),
    ("terminating", "exited"): ("terminating", ("note-end", "look")),
    ("terminating", "shell-killed"): ("terminating", ("note-end", "look")),
    ("terminating", "shell-gone"): ("terminating", ("note-end", "look")),
    ("terminating", "tree-left"): ("terminating", ("look-later",)),
    ("terminating", "tree-gone"): ("reading", ()),
    ("terminating", "look"): ("terminating", ("look",)),
    ("terminating", "order-end"): ("terminating", ("ask",)),
    ("terminating", "new-agent"): ("terminating", ("unwatch", "ask")),
    ("terminating", "deadline"): ("killing", ()),
    ("killing", "exited"): ("killing", ("note-end", "ask")),
    ("killing", "shell-killed"): ("killing", ("note-end", "ask")),
    ("killing", "shell-gone"): ("killing", ("note-end", "ask")),
    ("killing", "tree-seen"): ("killing", ("look-later",)),
    ("killing", "tree-left"): ("killing", ("look-later",)),
    ("killing", "tree-gone"): ("reading", ()),
    ("killing", "look"): ("killing", ("ask",)),
    ("killing", "order-end"): ("killing", ("ask",)),
    ("killing", "new-agent"): ("killing", ("unwatch", "ask")),
    ("killing", "deadline"): ("killing", ("extend", "force")),
    ("killing", "vanished"): ("reading", ()),
    ("reading", "end-read"): ("over", ("judge",)),
    ("reading", "code-tells"): ("over", ("judge-by-code",)),
    ("reading", "new-agent"): ("reading", ("ask",)),
    ("reading", "deadline"): ("over", ("replace-agent", "judge-by-code")),
}

_UNKNOWN = ("launching", "doomed", "finding", "finding-to-end")  # phases in which its shell is not known
_BEGUN = ("running", "terminating", "killing", "reading")
_FOUND = ("found-alive", "found-ended", "found-dead", "found-nothing")
_TREE = ("tree-seen", "tree-left", "tree-gone")
_WHY_IGNORED = (
    (("finding", "finding-to-end", *_BEGUN), ("begun", "launch-failed"), "no launch was asked for"),
    (("launching", "doomed", *_BEGUN), _FOUND, "it was not looked for, or was found meanwhile"),
    ((*_UNKNOWN, "running", "terminating", "killing"), ("end-read", "code-tells"), "its end is not being read"),
    ((*_UNKNOWN, "running", "reading"), (*_TREE, "look"), "it is not being ended: that is of a pause, or of before"),
    (("terminating",), ("tree-seen",), "its shell has until the grace is over, and its end will be told"),
    (_UNKNOWN, ("exited", "shell-killed", "shell-gone"), "its shell is not known: what was asked for tells more"),
    (("reading",), ("exited", "shell-killed", "shell-gone"), "it is known that its shell is gone"),
    (("doomed", "finding-to-end"), ("order-end",), "it was told to end already"),
    (("reading",), ("order-end",), "all of it is gone already"),
    (("launching", "finding"), ("pause-changed",), "that is done when its shell is known"),
    (("doomed", "finding-to-end", "terminating", "killing", "reading"), ("pause-changed",), "it has to end first"),
    (("launching", "finding", "running", "terminating", "reading"), ("vanished",), "it was not forced"),
    (("running",), ("deadline",), "it may last"),
)
IGNORED = {
    (phase, event): why for phases, events, why in _WHY_IGNORED for phase in phases for event in events
}  # what may come in a phase and changes nothing, and why


class Step(NamedTuple):
    """One transition that happened."""

    time: float
    state: str
    event: str
    next: str


class ImpossibleTransition(Exception):
    """An event came that the table does not know in this state: a bug, reported with the history."""

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
