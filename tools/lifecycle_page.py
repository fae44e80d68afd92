"""Draw docs/concepts/lifecycle.md from the tables that the broker executes.

python tools/lifecycle_page.py          write it
python tools/lifecycle_page.py --check  fail when the page says something else
"""

from __future__ import annotations

import sys
from pathlib import Path

from gpulease.model.lifecycle import JOB, LEASE, START, Table

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


def page() -> str:
    """The whole of docs/concepts/lifecycle.md."""
    parts = [
        "# The life of a lease and of a job",
        "Drawn from the tables in `gpulease.model.lifecycle` by `python tools/lifecycle_page.py`. Do not edit it.",
    ]
    for title, table in (("A lease", LEASE), ("A job", JOB)):
        parts += [f"## {title}", f"```mermaid\n{diagram(table)}\n```", rows(table)]
    return "\n\n".join(parts) + "\n"


def main(words: list[str]) -> int:
    if words == ["--check"]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
