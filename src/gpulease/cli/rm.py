"""`gpulease rm`: remove jobs from the queue; a running one is killed first."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
The log that the queue made for a job goes too; one of --log stays.

examples:
  gpulease rm 3
  gpulease rm --state failed
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    select = choice(arguments)
    return say("removed", ask("rm", select), select)
