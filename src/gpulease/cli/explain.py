"""`gpulease explain`: why a request waits, device by device."""

from __future__ import annotations

from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, add_last

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  gpulease explain L18
  gpulease explain 12       a job
  gpulease explain last
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_last(parser, "a request in the line, as `gpulease status` shows it, or a job")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    told = _told(Client(start=False), arguments.id)
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


def _told(client: Any, id: str) -> Any:
    """About a lease, or a job; of a job that is in no line it is told what it is instead."""
    from gpulease.cli.choosing import ask, one_id
    from gpulease.errors import NotFound, WrongState

    if id != "last" and not id.removeprefix("J").isdecimal():
        return client.ask("explain", id=id)
    number = one_id(id, client)
    try:
        return client.ask("explain", id=f"J{number}")
    except NotFound:
        job = ask("show", {"ids": [[number, number]]}, client)["jobs"][0]
        why = f": {job['why']}" if job["why"] else ""
        raise WrongState(f"Job {number} does not wait in the line, it is {job['state']}{why}.") from None
