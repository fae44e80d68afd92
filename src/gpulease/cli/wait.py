"""`gpulease wait`: wait for jobs to end; its exit code is theirs."""

from __future__ import annotations

import sys
import time

from gpulease.cli.choosing import add_choice, choice, named
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json
from gpulease.errors import NotFound, NotGranted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXAMPLES = """\
The exit code is 0 when all are complete, the job's own when one was waited for,
else 1. With several, a bar shows how far it is.

examples:
  gpulease wait 12
  gpulease wait all
  gpulease wait --label sweep1 --timeout 2h
"""
DAY = 86400.0  # seconds; the kernel does not wait for a month at once


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--timeout", metavar="TIME", help="give up after so long (exit code 75)")
    parser.add_argument("--quiet", "-q", action="store_true", help="no bar")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.quantities import parse_seconds

    until = None if arguments.timeout is None else time.monotonic() + parse_seconds(arguments.timeout)
    ended = wait_for(choice(arguments), until, None if arguments.quiet else _Bar().show)
    if arguments.json:
        import json

        print(json.dumps({"jobs": sorted(ended.values(), key=lambda job: int(job["id"]))}))
    return exit_code(list(ended.values()))


def wait_for(select: dict[str, Any], until: float | None, show: Any = None) -> dict[int, Any]:
    """The ends of all chosen jobs, through restarts of the broker."""
    from gpulease.client import Client, again

    ended: dict[int, Any] = {}
    client = Client()
    while True:
        try:
            client.send("wait", select=select)
            while _left(client, until, ended, show):
                pass
            return ended
        except ConnectionError:
            client = again(client)
        except NotFound as error:
            raise named(error, select) from None


def _left(client: Any, until: float | None, ended: dict[int, Any], show: Any) -> int:
    """How many have not ended, after the next word of the broker."""
    told = None
    while told is None:
        rest = None if until is None else until - time.monotonic()
        told = client.receive(None if rest is None else min(DAY, max(0.0, rest)))
        if told is None and rest is not None and rest <= DAY:
            raise NotGranted("The jobs did not end in time.", "Wait longer; `gpulease ls` shows how far they are.")
    for job in told["ok"]["ended"]:
        ended[job["id"]] = job
    left: int = told["ok"]["left"]
    if show is not None:
        show(len(ended), len(ended) + left)
    return left


def exit_code(ended: list[dict[str, Any]]) -> int:
    if all(job["state"] == "complete" for job in ended):
        return 0
    if len(ended) == 1:
        return ended[0]["exit_code"] or 1
    return 1


class _Bar:
    def __init__(self) -> None:
        from gpulease.cli.render import Terminal

        self._terminal = Terminal(sys.stderr)

    def show(self, done: int, total: int) -> None:
        if not self._terminal.interactive or total < 2:
            return
        end = "\n" if done == total else ""
        bar = self._terminal.bar(done / total, 30)
        print(f"\r\x1b[K{bar} {done} of {total} ended", end=end, file=sys.stderr, flush=True)
