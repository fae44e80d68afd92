"""`gpulease move`: give a waiting job another place in the line."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_last, at_least

EXAMPLES = """\
It takes the priority of whoever stands there.

examples:
  gpulease move 12          to the front
  gpulease move last        the newest job, to the front
  gpulease move 12 3        behind the first three
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_last(parser, "a job that waits")
    parser.add_argument("index", type=int, nargs="?", default=0, metavar="INDEX", help="its new place (default 0)")


def run(arguments: Namespace) -> int:
    from gpulease.cli.choosing import one_id
    from gpulease.client import Client

    index = at_least(0, "The place", arguments.index)
    client = Client()
    id = one_id(arguments.id, client)
    client.ask("move", id=id, index=index)
    print(f"moved {id}")
    return 0
