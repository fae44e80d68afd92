"""Which jobs a verb is about, as options. The same for every verb."""

from __future__ import annotations

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.job_selection import STATES


def add_choice(parser: ArgumentParser, more: str = "") -> None:
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"job ids and ranges, as 3,5-9; `all`; `last`{more}")
    parser.add_argument("--label", action="once", help="jobs with this label")
    states = f"jobs in this state: {', '.join(STATES[:-1])} or {STATES[-1]}"
    parser.add_argument("--state", action="once", choices=STATES, metavar="STATE", help=states)


def filters(arguments: Namespace) -> dict[str, Any]:
    return {"label": arguments.label, "state": arguments.state}
