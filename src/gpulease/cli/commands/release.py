"""`gpulease release`: give back leases of one's own."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say

EXAMPLES = """\
examples:
  gpulease release $GPUID        by device
  gpulease release L17           by lease
  gpulease release --mine        all of your own
  trap 'gpulease release --if-held $GPUID' EXIT
  gpulease release --mine --gone what scripts took --until-released and left
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="*", metavar="WHAT", help="lease ids, device indices (as 0,3) or UUIDs")
    parser.add_argument("--mine", action="store_true", help="everything that you hold")
    parser.add_argument("--all", action="store_true", help="everybody's, but for jobs; for root and the broker's user")
    parser.add_argument("--if-held", action="store_true", help="what you do not hold (any more) is no error")
    parser.add_argument(
        "--gone", action="store_true", help="of these, only what no process holds and whose asking process has ended"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="say nothing when it worked")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.api.lease_verbs import release

    asked = {name: getattr(arguments, name) for name in ("mine", "all", "if_held", "gone")}
    done = release(*arguments.what, **asked)
    if arguments.json:
        print_json({"released": done})
    elif not arguments.quiet:
        for lease in done:
            say(f"released {lease['id']}: GPU {','.join(lease['devices'])}")
        if not done and not arguments.if_held:
            print("nothing to release")
    return 0
