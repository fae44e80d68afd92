"""`gpulease stop`: end the broker. Leases stay valid, and the next broker finds them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  gpulease stop
"""
PATIENCE = 10.0


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    client = Client(start=False)
    told = client.ask("stop")
    try:
        client.receive(PATIENCE)
    except ConnectionError:
        pass  # the connection ends with the broker
    kept = [
        f"{told['jobs']} running jobs go on" if told["jobs"] else "",
        f"{told['leases'] - told['jobs']} leases stay valid" if told["leases"] > told["jobs"] else "",
        f"{told['line']} requests and jobs keep their place" if told["line"] else "",
    ]
    print("; ".join(["broker stopped", *filter(None, kept)]))
    return 0
