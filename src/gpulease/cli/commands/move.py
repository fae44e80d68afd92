"""`gpulease move`: give a waiting job another place in the queue."""

from __future__ import annotations

from gpulease.cli.options import add_whose, whose
from gpulease.cli.parsing import ArgumentParser, Namespace, add_last

EXAMPLES = """\
The job gets the priority of the request that has this place now.

examples:
  gpulease move 12          to the front
  gpulease move last        the newest job, to the front
  gpulease move 12 3        after the first three
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_last(parser, "a waiting job")
    parser.add_argument("index", type=int, nargs="?", default=0, metavar="INDEX", help="new place (default 0: front)")
    add_whose(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import move

    print(f"moved {move(arguments.id, arguments.index, **whose(arguments))['ids'][0]}")
    return 0
