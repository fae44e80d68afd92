"""`gpulease pause`: stop jobs for a while, or start no more."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import UsageError

EXAMPLES = """\
A paused job keeps its GPU and its memory there. `--queue` lets running jobs end
and starts no more.

examples:
  gpulease pause 3
  gpulease pause --queue
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--queue", action="store_true", help="start no more jobs")


def run(arguments: Namespace) -> int:
    return pause_or_resume(arguments, "pause", "paused")


def pause_or_resume(arguments: Namespace, verb: str, past: str) -> int:
    from gpulease.client import Client

    if not arguments.queue:
        select = choice(arguments)
        return say(past, ask(verb, select), select)
    if arguments.ids or arguments.label is not None or arguments.state is not None:
        raise UsageError("--queue is about all jobs, and some were named too.", "Leave one of the two out.")
    Client().ask(verb, queue=True)
    print(f"{past} the queue")
    return 0
