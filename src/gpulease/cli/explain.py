"""`gpulease explain`: why a request waits, device by device."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json, say

EXAMPLES = """\
examples:
  gpulease explain          one's own requests that wait
  gpulease explain L18
  gpulease explain 12       a job
  gpulease explain last
"""


TIMED = ("busy", "holding")  # reasons that say themselves when it should start


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    which = "a request in the line, as `gpulease status` shows it, or a job; `last` is the newest job"
    parser.add_argument("id", nargs="?", metavar="ID", help=f"{which}; without it, one's own that wait")
    add_json(parser)


def run(arguments: Namespace) -> int:
    if arguments.id is None:
        return _own(arguments)
    from gpulease.lease_verbs import explain

    told = explain(arguments.id)
    if arguments.json:
        return print_json(told, 2)
    from gpulease.cli.render import Terminal, plain_table

    terminal = Terminal()
    if told["lease"] is not None:
        say(f"{told['id']} does not wait: it holds GPU {','.join(told['lease']['labels'])}.")
        return 0
    from gpulease.cli.times import start_in

    start = start_in(told.get("expected_start"), told.get("expected_latest"))
    expected = f" It should start {start}." if start and told["code"] not in TIMED else ""
    say(f"{told['id']} is number {told['place']} in the line. {told['why']}{expected}")
    print()
    rows = [("GPU", "WHY NOT"), *((row["label"], row["why"]) for row in told["devices"])]
    print("\n".join(plain_table(rows, terminal)))
    return 0


def _own(arguments: Namespace) -> int:
    import os

    from gpulease.api import status
    from gpulease.identity import user_name

    own = [row for row in status()["line"] if row["user"] == user_name(os.getuid())]
    if arguments.json:
        return print_json({"requests": own}, 2)
    for row in own:
        say(f"{row['id']} waits. {row['why']}")
    if not own:
        print("You have no request in the line.")
    elif len(own) > 1:
        print(f"\nGPU by GPU: gpulease explain {own[0]['id']}")
    return 0
