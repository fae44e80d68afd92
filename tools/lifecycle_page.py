"""Draw docs/concepts/lifecycle.md from the tables that the broker executes.

python tools/lifecycle_page.py          write it
python tools/lifecycle_page.py --check  fail when the page says something else
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpulease.model.lifecycle import IGNORED, JOB, LEASE, PHASES, RUN, START, Table

PHASES_TEXT = """\
Each phase of a run has a question to its user's agent. It is asked when the phase begins, and a new agent is asked
again. An answer that is not there in time is the event `deadline`. `grace` is the setting of that name."""
IGNORED_TEXT = "These events change nothing. An event that is in neither table is logged and dropped."
PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "lifecycle.md"


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


def phases() -> str:
    """The questions of a run's phases, and their deadlines."""
    lines = ["| phase | question | deadline |", "| --- | --- | --- |"]
    for name, phase in PHASES.items():
        deadline = f"{phase.deadline:g} s" if isinstance(phase.deadline, float) else phase.deadline or "none"
        lines.append(f"| {name} | {phase.question or 'none'} | {deadline} |")
    return "\n".join(lines)


def ignored() -> str:
    """What a run ignores: by reason and phase."""
    lines = ["| phase | events | why |", "| --- | --- | --- |"]
    groups = dict.fromkeys((phase, why) for (phase, _), why in IGNORED.items())
    for phase, why in groups:
        events = [event for (state, event), reason in IGNORED.items() if (state, reason) == (phase, why)]
        lines.append(f"| {phase} | {', '.join(events)} | {why} |")
    return "\n".join(lines)


def page() -> str:
    """The whole of docs/concepts/lifecycle.md."""
    parts = [
        "# The life of a lease, of a job and of a run",
        "Drawn from the tables in `gpulease.model.lifecycle` by `python tools/lifecycle_page.py`. Do not edit it.",
    ]
    for title, table in (("A lease", LEASE), ("A job", JOB), ("A run of a job", RUN)):
        parts += [f"## {title}", f"```mermaid\n{diagram(table)}\n```", rows(table)]
    parts += [PHASES_TEXT, phases(), IGNORED_TEXT, ignored()]
    return "\n\n".join(parts) + "\n"


def main(words: list[str]) -> int:
    if words == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
