"""`gpulease log`: a job's output, also as it grows; `log broker` is the broker's own."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from gpulease.errors import NotFound

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  gpulease log 12
  gpulease log 12 -f             until it ends
  gpulease log last --tail 20
  gpulease log broker
"""
BLOCK = 1 << 16


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("id", metavar="ID", help="a job, `last`, or `broker`")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    client = Client()
    if arguments.id in ("broker", "main"):
        path, job = os.path.join(client.directory, "broker.log"), None
    else:
        job = _job(client, arguments.id)
        path = job["log"]
    position = _print(path, arguments.tail, job)
    if arguments.follow:
        _follow(client, path, position, job)
    return 0


def _job(client: Any, id: str) -> Any:
    from gpulease.cli.choosing import choice

    select = choice(Namespace(ids=[id], label=None, state=None, choice_required=True))
    return client.ask("show", select=select)["jobs"][0]


def _print(path: str, lines: int | None, job: dict[str, Any] | None) -> int:
    """What is there; returns where it ends."""
    if not os.path.exists(path):
        if job is not None and job["state"] in ("waiting", "held", "running"):
            return 0
        raise NotFound(f"There is no log at {path!r}.", "The job may never have started; see `gpulease show`.")
    if lines is not None:
        from gpulease.cli.show import tail

        found = tail(path, lines)
        print("\n".join(found) + ("\n" if found else ""), end="")
        return os.path.getsize(path)
    return _copy(path, 0)


def _copy(path: str, position: int) -> int:
    """Bytes as they are, from `position` on."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            while block := file.read(BLOCK):
                sys.stdout.buffer.write(block)
                position += len(block)
    except FileNotFoundError:
        return position
    sys.stdout.flush()
    return position


def _follow(client: Any, path: str, position: int, job: dict[str, Any] | None) -> None:
    """As it grows, until the job is over; the broker tells when that is."""
    if job is not None:
        client.send("wait", select={"ids": [[job["id"], job["id"]]]})
    over = False
    while True:
        position = _copy(path, position)
        if over:
            return
        told = client.receive(0.2)
        over = told is not None and told.get("ok", {}).get("left") == 0
