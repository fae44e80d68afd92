"""`gpulease resume`: let paused or held jobs, or the queue, go on."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice
from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.cli.pause import pause_or_resume

EXAMPLES = """\
examples:
  gpulease resume 3
  gpulease resume --queue
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.add_argument("--queue", action="store_true", help="start jobs again")


def run(arguments: Namespace) -> int:
    return pause_or_resume(arguments, "resume", "resumed")
