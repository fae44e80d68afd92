"""`gpulease exclude`: take devices out of service, for everybody."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, say

EXAMPLES = """\
gpulease shows excluded GPUs but does not grant them. Running leases go on until
they end. `gpulease include` puts the GPUs back.

examples:
  gpulease exclude 3 --note "fan broken"
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="+", metavar="DEVICE", help="GPU indices (as 0,3) or UUIDs")
    parser.add_argument("--note", metavar="TEXT", help="the reason, shown to everybody")


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import exclude

    say(f"excluded GPU {','.join(exclude(*arguments.what, note=arguments.note))}")
    return 0
