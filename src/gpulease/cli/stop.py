"""`gpulease stop`: end the broker. Jobs go on, leases stay valid, and the next broker finds them."""

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
    leases, line = told["leases"] - told["jobs"], told["line"]
    kept = ["broker stopped"]
    kept += [f"{told['jobs']} running jobs go on"] if told["jobs"] else []
    kept += [f"{leases} leases stay valid and {line} requests keep their place"] if leases or line else []
    print("; ".join(kept))
    return 0
