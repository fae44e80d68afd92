"""`gpulease move`: give a waiting job another place in the line."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLES = """\
It takes the priority of whoever stands there.

examples:
  gpulease move 12          to the front
  gpulease move 12 3        behind the first three
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("id", type=int, metavar="ID", help="a job that waits")
    parser.add_argument("index", type=int, nargs="?", default=0, metavar="INDEX", help="its new place (default 0)")


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    Client().ask("move", id=arguments.id, index=arguments.index)
    print(f"moved {arguments.id} to place {arguments.index}")
    return 0
