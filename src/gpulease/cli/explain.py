"""`gpulease explain`: why a request waits, device by device."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.parsing import add_json

EXAMPLES = """\
examples:
  gpulease explain L18
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("id", metavar="ID", help="a request in the line, as `gpulease status` shows it")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    told = Client(start=False).ask("explain", id=arguments.id)
    if arguments.json:
        import json

        print(json.dumps(told, indent=2))
        return 0
    from gpulease.cli.render import Terminal, plain_table

    terminal = Terminal()
    if told["lease"] is not None:
        print(f"{told['id']} does not wait: it holds GPU {','.join(told['lease']['labels'])}.")
        return 0
    print(f"{told['id']} is number {told['place']} in the line. {told['why']}\n")
    rows = [("GPU", "WHY NOT"), *((row["label"], row["why"]) for row in told["devices"])]
    print("\n".join(plain_table(rows, terminal)))
    return 0
