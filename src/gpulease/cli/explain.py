"""`gpulease explain`: why a request waits, device by device."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, add_last, print_json, say

EXAMPLES = """\
examples:
  gpulease explain L18
  gpulease explain 12       a job
  gpulease explain last
"""


TIMED = ("busy", "holding")  # reasons that say themselves when it should start


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_last(parser, "a request in the line, as `gpulease status` shows it, or a job")
    add_json(parser)


def run(arguments: Namespace) -> int:
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

    start = start_in(told.get("expected_start"))
    expected = f" It should start {start}." if start and told["code"] not in TIMED else ""
    say(f"{told['id']} is number {told['place']} in the line. {told['why']}{expected}")
    print()
    rows = [("GPU", "WHY NOT"), *((row["label"], row["why"]) for row in told["devices"])]
    print("\n".join(plain_table(rows, terminal)))
    return 0
