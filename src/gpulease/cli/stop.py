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
    kept = f"{told['leases']} leases stay valid and {told['line']} requests keep their place"
    print(f"broker stopped; {kept}" if told["leases"] or told["line"] else "broker stopped")
    return 0
