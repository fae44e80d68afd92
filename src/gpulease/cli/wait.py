"""`gpulease wait`: wait for jobs to end; its exit code is theirs."""

from __future__ import annotations

import sys

from gpulease.cli.choosing import add_choice, filters
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpulease.messages import JobEnd

EXAMPLES = """\
The exit code is 0 when all are complete, the job's own when one was waited for,
else 1. With several, a bar shows how far it is.

examples:
  gpulease wait 12
  gpulease wait all
  gpulease wait --label sweep1 --timeout 2h
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--timeout", metavar="TIME", help="give up after so long (exit code 75)")
    parser.add_argument("--quiet", "-q", action="store_true", help="no bar")
    add_json(parser)


def run(arguments: Namespace) -> int:
    from gpulease.queueing import wait

    progress = None if arguments.quiet else _Bar().show
    ended = wait(*arguments.ids, **filters(arguments), timeout=arguments.timeout, progress=progress)
    if arguments.json:
        print_json({"jobs": ended})
    return exit_code(ended)


def exit_code(ended: list[JobEnd]) -> int:
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
