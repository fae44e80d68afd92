"""The states of a lease and of a job, as one literal table: (state, event) -> (state, effects).

`python -m gpulease.lifecycle docs/concepts/lifecycle.md` draws the diagrams into the docs from the table.
Not here: doing anything. An effect is a name; the broker gives it meaning. An impossible transition
raises with the history that led to it, since what came before is what one needs to know.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

Effects = tuple[str, ...]
Table = Mapping[tuple[str, str], tuple[str, Effects]]

# A lease: asked for, waiting in the line, holding devices, draining while a process stays behind.
LEASE: Table = {
    ("new", "ask"): ("waiting", ("store", "plan")),
    ("new", "refuse"): ("refused", ("reply",)),
    ("waiting", "grant"): ("held", ("store", "watch-owner", "reply")),
    ("waiting", "leave"): ("left", ("store", "plan")),
    ("waiting", "owner-gone"): ("left", ("store", "plan")),
    ("waiting", "time-out"): ("left", ("store", "reply", "plan")),
    ("held", "renew"): ("held", ("store", "reply")),
    ("held", "release"): ("draining", ("store", "sample", "reply")),
    ("held", "expire"): ("draining", ("store", "sample")),
    ("held", "owner-gone"): ("draining", ("store", "sample")),
    ("draining", "processes-gone"): ("ended", ("store", "settle-usage", "plan")),
    ("draining", "boot"): ("ended", ("store", "settle-usage", "plan")),
    ("held", "boot"): ("ended", ("store", "settle-usage", "plan")),
    ("waiting", "boot"): ("left", ("store", "plan")),
}

# A job: held until somebody lets it go, waiting, running, paused, and one of five ends.
JOB: Table = {
    ("new", "add"): ("waiting", ("store", "join-line", "plan")),
    ("new", "add-held"): ("held", ("store",)),
    ("held", "let-go"): ("waiting", ("store", "join-line", "plan")),
    ("held", "kill"): ("killed", ("store", "finish")),
    ("waiting", "hold"): ("held", ("store", "leave-line", "plan")),
    ("waiting", "start"): ("running", ("store", "spawn")),
    ("waiting", "kill"): ("killed", ("store", "leave-line", "finish", "plan")),
    ("running", "cannot-start"): ("invalid", ("store", "release", "finish")),
    ("running", "pause"): ("paused", ("store", "stop-tree")),
    ("running", "exit-zero"): ("complete", ("store", "release", "finish")),
    ("running", "exit-nonzero"): ("failed", ("store", "release", "finish")),
    ("running", "retry-after-failure"): ("waiting", ("store", "release", "join-line", "plan")),
    ("running", "killed"): ("killed", ("store", "release", "finish")),
    ("running", "lost"): ("lost", ("store", "release", "finish")),
    ("paused", "cannot-start"): ("invalid", ("store", "release", "finish")),
    ("paused", "retry-after-failure"): ("waiting", ("store", "release", "join-line", "plan")),
    ("paused", "resume"): ("running", ("store", "continue-tree")),
    ("paused", "exit-zero"): ("complete", ("store", "release", "finish")),
    ("paused", "exit-nonzero"): ("failed", ("store", "release", "finish")),
    ("paused", "killed"): ("killed", ("store", "release", "finish")),
    ("paused", "lost"): ("lost", ("store", "release", "finish")),
    ("complete", "retry"): ("waiting", ("store", "join-line", "plan")),
    ("failed", "retry"): ("waiting", ("store", "join-line", "plan")),
    ("invalid", "retry"): ("waiting", ("store", "join-line", "plan")),
    ("killed", "retry"): ("waiting", ("store", "join-line", "plan")),
    ("lost", "retry"): ("waiting", ("store", "join-line", "plan")),
}

START = "new"
LEASE_ENDS = frozenset({"refused", "left", "ended"})
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


class Life(NamedTuple):
    """Where a lease or a job is, and the last steps that led there."""

    what: str  # "lease 7", "job 12"
    state: str = START
    history: tuple[Step, ...] = ()


REMEMBERED = 20  # steps; enough to see what led to an impossible one


def advance(table: Table, life: Life, event: str, now: float) -> tuple[Life, Effects]:
    """The life after `event`, and the effects that the caller must carry out."""
    found = table.get((life.state, event))
    if found is None:
        raise ImpossibleTransition(life.what, life.state, event, life.history)
    state, effects = found
    step = Step(now, life.state, event, state)
    return Life(life.what, state, (*life.history, step)[-REMEMBERED:]), effects


def states(table: Table) -> frozenset[str]:
    return frozenset(state for state, _ in table) | frozenset(state for state, _ in table.values())


def diagram(table: Table) -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {START}"]
    lines += [f"    {state} --> {to}: {event}" for (state, event), (to, _) in table.items()]
    last = sorted(states(table) - {state for state, _ in table})
    lines += [f"    {state} --> [*]" for state in last]
    return "\n".join(lines)


def rows(table: Table) -> str:
    """The table as Markdown, effects included."""
    lines = ["| state | event | next state | effects |", "| --- | --- | --- | --- |"]
    for (state, event), (to, effects) in table.items():
        lines.append(f"| {state} | {event} | {to} | {', '.join(effects)} |")
    return "\n".join(lines)


def page() -> str:
    """The whole of docs/concepts/lifecycle.md."""
    parts = [
        "# The life of a lease and of a job",
        "Drawn from the tables in `gpulease.lifecycle` by `python -m gpulease.lifecycle "
        "docs/concepts/lifecycle.md`; do not edit it by hand.",
    ]
    for title, table in (("A lease", LEASE), ("A job", JOB)):
        parts += [f"## {title}", f"```mermaid\n{diagram(table)}\n```", rows(table)]
    return "\n\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m gpulease.lifecycle FILE\n")
        return 2
    with open(arguments[0], "w", encoding="utf-8") as file:
        file.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
