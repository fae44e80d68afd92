"""`gpulease rebalance`: move one's waiting jobs to hosts where they would start sooner."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpulease.cli.parsing import ArgumentParser, Namespace, add_hosts, add_json, print_json, say
from gpulease.errors import GpuleaseError

if TYPE_CHECKING:
    from typing import Any

    from gpulease.host_choice import Move

EXAMPLES = """\
Each host's planner is asked when each of your waiting jobs would start there.
One is moved if it gains a minute or more. It is queued on the new host, held,
then removed from the old one if it still waits there, and then let go: no job
is lost or run twice. What an interrupted one left is finished by the next.
Jobs that come after others or before them, have run before, name GPUs, or
belong to a sweep with --at-most stay where they are.

examples:
  gpulease rebalance
  gpulease rebalance --dry-run
  gpulease rebalance --hosts gpu1,gpu2
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_hosts(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be moved")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease import hosts, rebalancing

    names = hosts.names(arguments.hosts)
    told: dict[str, Any] = {"moved": [], "stayed": [], "troubles": []}
    with rebalancing.journal() as folder:
        for group in () if arguments.dry_run else rebalancing.unfinished(folder):
            _carry(group, told)
        chosen, stayed, troubles = rebalancing.planned(names)
        told["stayed"] += stayed
        told["troubles"] += [trouble.what for trouble in troubles]
        if arguments.dry_run:
            told["moved"] = [_row(move.source, move.job, move.target, None) for move in chosen]
        else:
            for (source, target), ids in _groups(chosen).items():
                _move(folder, source, target, ids, told)
    _show(arguments, told)
    return 69 if told["troubles"] else 0


def _groups(chosen: list[Move]) -> dict[tuple[str, str], list[int]]:
    found: dict[tuple[str, str], list[int]] = {}
    for move in chosen:
        found.setdefault((move.source, move.target), []).append(move.job)
    return found


def _move(folder: str, source: str, target: str, ids: list[int], told: dict[str, Any]) -> None:
    from gpulease import rebalancing

    for first in range(0, len(ids), rebalancing.AT_ONCE):
        try:
            group = rebalancing.begin(folder, source, target, ids[first : first + rebalancing.AT_ONCE])
        except GpuleaseError as trouble:
            told["troubles"].append(trouble.what)
            continue
        if group is not None:
            _carry(group, told)


def _carry(group: Any, told: dict[str, Any]) -> None:
    from gpulease.rebalancing import carry

    try:
        moved, stayed = carry(group)
    except GpuleaseError as trouble:
        jobs = f"{group.source}:{group.ids('id')}"
        told["troubles"].append(f"{trouble.what} The move of {jobs} is finished by the next `gpulease rebalance`.")
        return
    told["moved"] += [_row(group.source, old, group.target, new) for old, new in moved]
    told["stayed"] += stayed


def _row(source: str, old: int, target: str, new: int | None) -> dict[str, Any]:
    return {"from": f"{source}:{old}", "host": target, "to": None if new is None else f"{target}:{new}"}


def _show(arguments: Namespace, told: dict[str, Any]) -> None:
    if arguments.json:
        print_json(told, 2)
        return
    for row in told["moved"]:
        say(f"{row['from']} would move to {row['host']}" if row["to"] is None else f"{row['from']} is now {row['to']}")
    if not told["moved"]:
        print("nothing to move")
    for text in (*told["stayed"], *told["troubles"]):
        say(f"gpulease: {text}", sys.stderr)
