"""`gpulease pause`: stop jobs for a while, or start no more."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice, say

EXAMPLES = """\
A paused job keeps its GPU and its memory there. `--queue` lets running jobs end and
starts no more.

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
        return say(past, Client().ask(verb, select=choice(arguments)))
    Client().ask(verb, queue=True)
    print(f"{past} the queue")
    return 0
