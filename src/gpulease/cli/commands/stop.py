"""`gpulease stop`: end the broker. Jobs go on, leases stay valid, and the next broker finds them."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  gpulease stop
"""
PATIENCE = 10.0


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES


def run(arguments: Namespace) -> int:
    from gpulease.client.connection import Client

    client = Client(start=False)
    told = client.ask("stop")
    try:
        client.receive(PATIENCE)
    except ConnectionError:
        pass  # the connection ends with the broker
    ending = told.get("ending", 0)
    kept = [
        f"running jobs go on: {told['jobs'] - ending}" if told["jobs"] > ending else "",
        f"jobs that are being ended: {ending}" if ending else "",
        f"leases stay valid: {told['leases'] - told['jobs']}" if told["leases"] > told["jobs"] else "",
        f"places in the line are kept: {told['line']}" if told["line"] else "",
    ]
    print("; ".join(["broker stopped", *filter(None, kept)]))
    return 0
