"""`gpulease include`: bring excluded devices back into service."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  gpulease include 3
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="+", metavar="DEVICE", help="indices (as 0,3) or UUIDs")


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    what = [part for word in arguments.what for part in word.split(",") if part]
    done = Client().ask("include", what=what)["included"]
    print(f"included GPU {','.join(done)}")
    return 0
