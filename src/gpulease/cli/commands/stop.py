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
    reply = client.ask("stop")
    try:
        client.receive(PATIENCE)
    except ConnectionError:
        pass  # the connection ends with the broker
    ending = reply.get("ending", 0)
    kept = [
        f"running jobs go on: {reply['jobs'] - ending}" if reply["jobs"] > ending else "",
        f"jobs that are being ended: {ending}" if ending else "",
        f"leases stay valid: {reply['leases'] - reply['jobs']}" if reply["leases"] > reply["jobs"] else "",
        f"waiting requests keep their places: {reply['line']}" if reply["line"] else "",
    ]
    print("; ".join(["broker stopped", *filter(None, kept)]))
    return 0
