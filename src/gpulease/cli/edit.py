"""`gpulease edit`: change jobs that wait or are held."""

from __future__ import annotations

import os
from argparse import SUPPRESS, ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice, say
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  gpulease edit 12 --priority 1
  gpulease edit 3-9 --mem 8G --new-label night
  gpulease edit 12 -- python train.py --lr 0.01
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.set_defaults(command_behind=True)
    for option in ("--gpus", "--priority", "--retry"):
        parser.add_argument(option, type=int, default=SUPPRESS, metavar="N", help=f"another {option[2:]}")
    for option in ("--mem", "--min-memory"):
        parser.add_argument(option, default=SUPPRESS, metavar="SIZE", help=f"another {option[2:]}; `none` for none")
    parser.add_argument("--name", default=SUPPRESS, help="other names of GPUs")
    parser.add_argument("--time-limit", default=SUPPRESS, metavar="TIME", help="another time limit; `none` for none")
    parser.add_argument("--name-job", default=SUPPRESS, metavar="NAME", help="another name")
    parser.add_argument("--new-label", default=SUPPRESS, metavar="LABEL", help="another label")
    parser.add_argument("--note", default=SUPPRESS, metavar="TEXT", help="another note")
    parser.add_argument("--after", default=SUPPRESS, metavar="IDS", help="other jobs to come after; `none` for none")
    parser.add_argument("--after-any", default=SUPPRESS, metavar="IDS", help="the same, however they end")
    parser.add_argument("--at", default=SUPPRESS, metavar="TIME", help="another time before which it does not start")
    parser.add_argument("--cwd", default=SUPPRESS, metavar="PATH", help="another folder")


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    changes = _changes(vars(arguments))
    if not changes:
        raise UsageError("Nothing to change was given.", "See `gpulease edit --help`.")
    return say("edited", Client().ask("edit", select=choice(arguments), changes=changes))


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    from gpulease.cli.add import ids, moment
    from gpulease.quantities import parse_bytes, parse_seconds

    def size(text: str) -> int | None:
        return None if text == "none" else parse_bytes(text)

    request: dict[str, Any] = {name: given[name] for name in ("gpus", "priority") if name in given}
    if "mem" in given:
        request["memory"] = size(given["mem"])
    if "min_memory" in given:
        request["min_memory"] = size(given["min_memory"])
    if "at" in given:
        request["not_before"] = moment(given["at"])
    if "name" in given:
        request["names"] = [part for part in given["name"].split(",") if part]
    changes: dict[str, Any] = {name: given[name] for name in ("retry", "note") if name in given}
    for option, field in (("name_job", "name"), ("new_label", "label")):
        if option in given:
            changes[field] = given[option]
    for option in ("after", "after_any"):
        if option in given:
            changes["after"] = [] if given[option] == "none" else ids(given[option])
            changes["after_any"] = option == "after_any"
    if "cwd" in given:
        changes["cwd"] = os.path.abspath(given["cwd"])
    if "time_limit" in given:
        limit = given["time_limit"]
        changes["time_limit"] = None if limit == "none" else parse_seconds(limit)
    if given.get("command"):
        changes["command"] = given["command"]
    return {**changes, "request": request} if request else changes
