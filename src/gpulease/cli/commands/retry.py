"""`gpulease retry`: queue ended jobs again, as they were or with another request."""

from __future__ import annotations

import time

from gpulease.api.job_commands import job_changes
from gpulease.cli.commands.add import named_variables, tell_left_out
from gpulease.cli.commands.edit import add_changes, changes_given
from gpulease.cli.commands.jobs import say_done
from gpulease.cli.options import add_choice, add_everybody, filters, refused
from gpulease.cli.parsing import ArgumentParser, Namespace, add_json, print_json
from gpulease.errors import UsageError
from gpulease.model.fields import JOB, REQUEST, as_option
from gpulease.model.job_selection import ENDED, selection

EXAMPLES = """\
`all`, --label and --user select jobs that failed, were killed, lost or invalid.
A complete job runs again only by its id or --state. A job that comes after a
failed job runs again only together with it. Options change the new run; all
else stays the same.

gpulease deletes the environment variables of an ended job after a day
(`keep-env-for`). After that, retry it with those of this shell: --new-env.

examples:
  gpulease retry 12
  gpulease retry 12 --min-memory 40G    it ran out of memory on a small GPU
  gpulease retry --state failed
  gpulease retry all --new-env
"""
CHANGES = (*(row for row in REQUEST if not row.job), *(row for row in JOB if row.name == "time_limit"))


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    add_everybody(parser)
    add_json(parser)
    add_changes(parser, CHANGES)
    parser.add_argument("--new-env", action="store_true", help="use this shell's variables, not the job's own")
    kept = "with --new-env: set a variable; NAME alone keeps a secret one"
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help=kept)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import send_retry

    if arguments.env and not arguments.new_env:
        raise UsageError("--env was given without --new-env.", "Give both: all of their variables are then new.")
    select = selection(arguments.ids, **filters(arguments))
    given = {name: value for name, value in changes_given(arguments).items() if name in [row.name for row in CHANGES]}
    fields = {"changes": job_changes(given, as_option, time.time())} if given else {}
    if refused("retry", arguments, arguments.ids, ",".join(ENDED[1:])):
        return 1
    done = send_retry(select, fields, named_variables(arguments.env) if arguments.new_env else None)
    tell_left_out(done.get("left_out", []))
    if arguments.json:
        return print_json(done, 2)
    say_done("queued again", done, arguments.ids)
    return 0
