"""`gpulease move`: give a waiting job another place in the line."""

from __future__ import annotations

from gpulease.cli.options import add_whose, whose
from gpulease.cli.parsing import ArgumentParser, Namespace, add_last

EXAMPLES = """\
It takes the priority of the one that stands there.

examples:
  gpulease move 12          to the front
  gpulease move last        the newest job, to the front
  gpulease move 12 3        behind the first three
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_last(parser, "a job that waits")
    parser.add_argument("index", type=int, nargs="?", default=0, metavar="INDEX", help="its new place (default 0)")
    add_whose(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import move

    print(f"moved {move(arguments.id, arguments.index, **whose(arguments))['ids'][0]}")
    return 0
