"""`gpulease clean`: forget ended jobs and the logs that the queue made for them."""

from __future__ import annotations

from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import NotFound, WrongState

EXAMPLES = """\
The log that the queue made for a job goes too; one of --log stays.

examples:
  gpulease clean                     all that ended
  gpulease clean --state complete
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser, required=False)


def run(arguments: Namespace) -> int:
    select = choice(arguments)
    try:
        return say("forgot", ask("clean", select), select)
    except NotFound:
        job = ask("show", select)["jobs"][0]  # else there is none, and that is what is told
        raise WrongState(f"Job {job['id']} is {job['state']}, so it cannot be forgotten.") from None
