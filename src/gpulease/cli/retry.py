"""`gpulease retry`: queue ended jobs again."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice, say

EXAMPLES = """\
examples:
  gpulease retry 12
  gpulease retry --state failed
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    return say("queued again", Client().ask("retry", select=choice(arguments)))
