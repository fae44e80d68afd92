"""`gpulease kill`: end jobs with all that they started: TERM, and KILL after the grace."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
A device is not free before all that the job started is gone. The grace between
TERM and KILL is the parameter `grace` (see `gpulease set`).

examples:
  gpulease kill 3
  gpulease kill 3,5-9
  gpulease kill all
  gpulease kill --label sweep1
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    select = choice(arguments)
    return say("killed", ask("kill", select), select)
