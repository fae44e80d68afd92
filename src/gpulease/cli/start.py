"""`gpulease start`: start waiting jobs now, past the policy, but never on a device of another."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  gpulease start 12
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    select = choice(arguments)
    return say("next to start:", ask("start", select), select)
