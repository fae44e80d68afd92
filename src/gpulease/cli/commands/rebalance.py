"""`gpulease rebalance`: move one's waiting jobs to hosts where they would start sooner."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, print_json, say
from gpulease.errors import GpuleaseError, UsageError

if TYPE_CHECKING:
    from typing import Any

    from gpulease.api.rebalance import Group
    from gpulease.hosts.choice import Move

EXAMPLES = """\
It asks each host when your waiting jobs would start there, and moves a job that
starts at least a minute sooner. No job is lost or runs twice, even if this
command is interrupted; the next call finishes its work. These jobs stay: jobs
with dependencies, jobs that have run before, jobs that name GPUs, and jobs of a
sweep with --at-most.

It shows the commands and asks first: a host could name a command that is not
yours, and it would run as you on another host.

examples:
  gpulease rebalance
  gpulease rebalance --dry-run
  gpulease rebalance --hosts gpu1,gpu2 --yes
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_hosts(parser)
    parser.add_argument("--dry-run", action="store_true", help="only print which jobs would move")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask; you trust all these hosts")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api import rebalance as api_rebalance
    from gpulease.hosts import hosts

    names = hosts.names(arguments.hosts)
    asks = not arguments.yes and not arguments.dry_run
    if asks and not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            "`rebalance` asks before it moves jobs, and there is no terminal.",
            "Give --yes if you trust each of the hosts; --dry-run shows what would be moved.",
        )
    report: dict[str, Any] = {"moved": [], "stayed": [], "troubles": []}
    with api_rebalance.journal() as folder:
        for group in () if arguments.dry_run else api_rebalance.unfinished(folder):
            _carry(group, report)
        chosen, stayed, troubles = api_rebalance.planned(names)
        report["stayed"] += stayed
        report["troubles"] += [trouble.what for trouble in troubles]
        groups = _groups(folder, chosen, report)
        if arguments.dry_run:
            report["moved"] = _rows(groups, chosen)
        elif not asks or not groups or _agreed(_rows(groups, chosen)):
            for group in groups:
                _carry(group, report)
    _show(arguments, report)
    return 69 if report["troubles"] else 0


def _groups(folder: str, chosen: list[Move], report: dict[str, Any]) -> list[Group]:
    """What would go together, as its host tells it now: what is shown is what is sent."""
    from gpulease.api import rebalance as api_rebalance

    ids: dict[tuple[str, str], list[int]] = {}
    for move in chosen:
        ids.setdefault((move.source, move.target), []).append(move.job)
    found = []
    for (source, target), own in ids.items():
        for first in range(0, len(own), api_rebalance.AT_ONCE):
            try:
                group = api_rebalance.prepared(folder, source, target, own[first : first + api_rebalance.AT_ONCE])
            except GpuleaseError as trouble:
                report["troubles"].append(trouble.what)
                continue
            found += [] if group is None else [group]
    return found


def _rows(groups: list[Group], chosen: list[Move]) -> list[dict[str, Any]]:
    """A row for each job, in the order in which they were chosen."""
    found = {row["from"]: row for group in groups for row in (_row(group, job) for job in group.jobs)}
    return [found[id] for move in chosen if (id := f"{move.source}:{move.job}") in found]


def _agreed(rows: list[dict[str, Any]]) -> bool:
    for row in rows:
        say(_line(row), sys.stderr)
    say("They run as you there, in the folder and with the variables that the old host tells.", sys.stderr)
    print("Move them? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _carry(group: Group, report: dict[str, Any]) -> None:
    from gpulease.api.rebalance import carry

    try:
        moved, stayed = carry(group)
    except GpuleaseError as trouble:
        jobs = f"{group.source}:{group.ids('id')}"
        report["troubles"].append(f"{trouble.what} The move of {jobs} is finished by the next `gpulease rebalance`.")
        return
    new_ids = dict(moved)
    report["moved"] += [_row(group, job, new_ids[job["id"]]) for job in group.jobs if job["id"] in new_ids]
    report["stayed"] += stayed


def _row(group: Group, job: dict[str, Any], new: int | None = None) -> dict[str, Any]:
    to = None if new is None else f"{group.target}:{new}"
    command = job["batch"]["commands"][0]
    return {"from": f"{group.source}:{job['id']}", "host": group.target, "to": to, "command": command}


def _line(row: dict[str, Any]) -> str:
    import shlex

    return f"{row['from']} would move to {row['host']}: {shlex.join(row['command'])}"


def _show(arguments: Namespace, report: dict[str, Any]) -> None:
    if arguments.json:
        print_json(report, 2)
        return
    for row in report["moved"]:
        say(_line(row) if row["to"] is None else f"{row['from']} is now {row['to']}")
    if not report["moved"]:
        print("nothing was moved" if not arguments.dry_run else "nothing to move")
    for text in (*report["stayed"], *report["troubles"]):
        say(f"gpulease: {text}", sys.stderr)
