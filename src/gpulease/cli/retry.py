"""`gpulease retry`: queue ended jobs again."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace

EXAMPLES = """\
examples:
  gpulease retry 12
  gpulease retry --state failed
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    select = choice(arguments)
    return say("queued again", ask("retry", select), select)
