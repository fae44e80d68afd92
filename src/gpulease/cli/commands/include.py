"""`gpulease include`: bring excluded devices back into service."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, say

EXAMPLES = """\
examples:
  gpulease include 3
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="+", metavar="DEVICE", help="GPU indices (as 0,3) or UUIDs")


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import include

    say(f"included GPU {','.join(include(*arguments.what))}")
    return 0
