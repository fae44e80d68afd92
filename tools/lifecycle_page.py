"""Draw docs/concepts/lifecycle.md from the tables that the broker executes.

python tools/lifecycle_page.py          write it
python tools/lifecycle_page.py --check  fail when the page says something else
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpulease.model.lifecycle import JOB, LEASE, PHASES, RUN, START, Effects, Table

INTRODUCTION = """\
Job 12 runs, and you type `gpulease kill 12`:

| table | event | what happens |
| --- | --- | --- |
| job | `order-end` | the job stays `running`; the broker writes the order to disk and passes it to the run |
| run | `order-end` | `terminating`: the user's agent sends TERM to all processes of the job |
| run | `deadline` | `killing`: the grace is over, so the agent sends KILL |
| run | `tree-gone` | `reading`: all processes are gone, and the agent reads how the job ended |
| run | `end-read` | `over` |
| job | `killed` | `killed`: the lease ends |

The broker executes the tables below. They are in `gpulease.model.lifecycle`, and `python tools/lifecycle_page.py`
writes this page from them. [Jobs](jobs.md) and [leases](leases.md) explain the states to users."""
PHASES_TEXT = """\
In each phase of a run the broker asks the user's agent to do something. It asks when the phase begins, and asks a new
agent again. If no answer arrives in time, the event is `deadline`. `grace` is the
[parameter](../reference/parameters.md) of that name."""
IGNORED_TEXT = """\
An event that the table of runs does not have in a phase changes nothing. `IGNORED` in the same module lists the events
that may arrive late, each with the reason. The broker logs all others."""
PAGE = Path(__file__).parent.parent / "docs" / "concepts" / "lifecycle.md"


def states(table: Table) -> frozenset[str]:
    return frozenset(state for state, _ in table) | frozenset(state for state, _ in table.values())


def diagram(table: Table) -> str:
    """The table as a Mermaid diagram: one arrow for each pair of states, none from a state to itself."""
    lines = ["stateDiagram-v2", f"    [*] --> {START}"]
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), (to, _) in table.items():
        if to != state:
            arrows.setdefault((state, to), []).append(event)
    lines += [f"    {state} --> {to}: {', '.join(events)}" for (state, to), events in arrows.items()]
    last = sorted(states(table) - {state for state, _ in table})
    lines += [f"    {state} --> [*]" for state in last]
    return "\n".join(lines)


def rows(table: Table) -> str:
    """The table as Markdown, with effects. States and events with the same outcome share a row."""
    events: dict[tuple[str, str, Effects], list[str]] = {}
    for (state, event), (to, effects) in table.items():
        events.setdefault((state, to, effects), []).append(event)
    sources_of: dict[tuple[str, str, Effects], list[str]] = {}
    for (state, to, effects), names in events.items():
        sources_of.setdefault((", ".join(names), to, effects), []).append(state)
    lines = ["| state | event | next state | effects |", "| --- | --- | --- | --- |"]
    for (listed, to, effects), sources in sources_of.items():
        lines.append(f"| {', '.join(sources)} | {listed} | {to} | {', '.join(effects)} |")
    return "\n".join(lines)


def phases() -> str:
    """The questions of a run's phases, and their deadlines."""
    lines = ["| phase | question | deadline |", "| --- | --- | --- |"]
    for name, phase in PHASES.items():
        deadline = f"{phase.deadline:g} s" if isinstance(phase.deadline, float) else phase.deadline or "none"
        lines.append(f"| {name} | {phase.question or 'none'} | {deadline} |")
    return "\n".join(lines)


def page() -> str:
    """The whole of docs/concepts/lifecycle.md."""
    parts = ["# Lifecycle of leases, jobs and runs", INTRODUCTION]
    for title, table in (("A lease", LEASE), ("A job", JOB), ("A run of a job", RUN)):
        parts += [f"## {title}", f"```mermaid\n{diagram(table)}\n```", rows(table)]
    parts += [PHASES_TEXT, phases(), IGNORED_TEXT]
    return "\n\n".join(parts) + "\n"


def main(words: list[str]) -> int:
    if words == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
