"""`gpulease set`: show or change the parameters of the queue and of the planner."""

from __future__ import annotations

import sys

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, clean, print_json

MEANING, VALUE = 34, 24  # columns: at least so many of a terminal's; in a pipe, at most so many for all rows' sake
EXAMPLES = """\
Changes survive a restart. `gpulease help parameters` explains each parameter.
gpulimit's names (MAX_ERR_TIMES, SAFETY_KEEP_MEMORY, ...) work too.

examples:
  gpulease set
  gpulease set keep-memory 0.1
  gpulease set limits "user:*:gpus=4"
  gpulease set patience default
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("name", nargs="?", metavar="NAME", help="the parameter (default: show all)")
    parser.add_argument("value", nargs="?", metavar="VALUE", help="its new value, or `default`")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api import jobs as api_jobs

    reply = api_jobs.set(arguments.name, arguments.value)
    if arguments.name is not None:
        for row in reply:
            then = " They count as soon as it is there." if row["name"] == "limits" else ""
            for warning in row["warnings"]:
                print(f"gpulease: {clean(warning)}{then}", file=sys.stderr)
    if arguments.json:
        return print_json({"parameters": reply}, 2)
    from gpulease.render.terminal import Terminal, plain_table

    rows = [("NAME", "VALUE", "", "MEANING")]
    rows += [(row["name"], row["value"], "" if row["default"] else row["from"], row["meaning"]) for row in reply]
    print("\n".join(plain_table(rows, Terminal(), least=MEANING, most=VALUE)))
    return 0
