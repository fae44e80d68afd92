"""`gpulease log`: a job's output, also as it grows; `log broker` is the broker's own."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from gpulease.errors import NotFound, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
examples:
  gpulease log 12
  gpulease log 12 -f             until it ends
  gpulease log last --tail 20
  gpulease log broker            the broker's own
"""
BLOCK = 1 << 16
LOOK = 0.2  # seconds between looks at a file that grows


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.add_argument("ids", nargs="+", metavar="ID", help="job ids and ranges, as 3,5-9; `all`; `last`; `broker`")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("--tail", type=int, metavar="N", help="only the last N lines")


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    client = Client()
    if arguments.ids in (["broker"], ["main"]):
        path = os.path.join(client.directory, "broker.log")
        return _show(client, path, arguments, None)
    found = _jobs(client, arguments.ids)
    if arguments.follow and len(found) > 1:
        raise UsageError("Only one log can be followed.", "Name one job with -f.")
    for job in found:
        if len(found) > 1:
            print(f"==> job {job['id']} <==", flush=True)
        _show(client, job["log"], arguments, job)
    return 0


def _show(client: Any, path: str, arguments: Namespace, job: dict[str, Any] | None) -> int:
    position = _print(path, arguments.tail, job)
    if arguments.follow:
        _follow(client, path, position, job)
    return 0


def _jobs(client: Any, ids: list[str]) -> Any:
    from gpulease.cli.choosing import choice

    select = choice(Namespace(ids=ids, label=None, state=None, choice_required=True))
    return client.ask("show", select=select)["jobs"]


def _print(path: str, lines: int | None, job: dict[str, Any] | None) -> int:
    """What is there; returns where it ends."""
    if not os.path.exists(path):
        if job is not None and job["state"] in ("waiting", "held", "running", "paused"):
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
    """As it grows, until the job is over; the broker tells when that is, or the one that comes after it."""
    from gpulease.client import again

    _watch(client, job)
    over = False
    while True:
        position = _copy(path, position)
        if over:
            return
        try:
            told = client.receive(LOOK)
            over = told is not None and told.get("ok", {}).get("left") == 0
        except ConnectionError:
            client = again(client)
            _watch(client, job)


def _watch(client: Any, job: dict[str, Any] | None) -> None:
    if job is not None:
        client.send("wait", select={"ids": [[job["id"], job["id"]]]})
