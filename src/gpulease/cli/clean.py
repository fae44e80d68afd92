"""`gpulease clean`: forget ended jobs and the logs that the queue made for them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from gpulease.cli.choosing import add_choice, choice, say

EXAMPLES = """\
examples:
  gpulease clean                     all that ended
  gpulease clean --state complete
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser, required=False)


def run(arguments: Namespace) -> int:
    from gpulease.client import Client

    return say("forgot", Client().ask("clean", select=choice(arguments)))
