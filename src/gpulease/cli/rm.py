"""`gpulease rm`: remove jobs from the queue; a running one is killed first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice, say

EXAMPLES = """\
examples:
  gpulease rm 3
  gpulease rm --state failed
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    return say("removed", Client().ask("rm", select=choice(arguments)))
