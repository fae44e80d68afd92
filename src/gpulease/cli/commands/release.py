"""`gpulease release`: give back leases of one's own."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say

EXAMPLES = """\
examples:
  gpulease release $GPUID        your lease on this GPU
  gpulease release L17           this lease
  gpulease release --mine        all your leases
  trap 'gpulease release --if-held $GPUID' EXIT
  gpulease release --mine --gone leftovers of `get --until-released`
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="*", metavar="WHAT", help="lease ids, GPU indices (as 0,3) or UUIDs")
    parser.add_argument("--mine", action="store_true", help="all your leases")
    parser.add_argument("--all", action="store_true", help="all users' leases, not jobs (root or broker's user only)")
    parser.add_argument("--if-held", action="store_true", help="no error if you do not hold it (any more)")
    parser.add_argument(
        "--gone", action="store_true", help="only leftovers: held by no process, and their script has ended"
    )
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing on success")
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
