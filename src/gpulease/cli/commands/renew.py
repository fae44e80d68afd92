"""`gpulease renew`: more time for timed leases."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say

EXAMPLES = """\
examples:
  gpulease renew L17 --for 2h     ends two hours from now
  gpulease renew --for 2h         all your timed leases
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("what", nargs="*", metavar="WHAT", help="lease ids or GPUs (default: all your timed leases)")
    parser.add_argument("--for", dest="duration", required=True, metavar="TIME", help="time from now, as 4h")
    add_json(parser)


def run(arguments: Namespace) -> int:
    import time

    from gpulease.api.lease_verbs import renew

    done = renew(*arguments.what, duration=arguments.duration)
    if arguments.json:
        return print_json({"renewed": done})
    for lease in done:
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(lease["until"]))
        say(f"renewed {lease['id']}: GPU {','.join(lease['devices'])} until {until}")
    return 0
