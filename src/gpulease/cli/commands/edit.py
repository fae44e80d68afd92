"""`gpulease edit`: change jobs that wait or are held."""

from __future__ import annotations

import time

from gpulease.api.job_commands import job_changes
from gpulease.cli.commands.jobs import say_done
from gpulease.cli.options import add_choice, add_everybody, add_field, filters, refused
from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.model.fields import CLEARED, JOB, REQUEST, as_option
from gpulease.model.job_selection import selection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpulease.model.fields import Field

EXAMPLES = """\
Only what you name changes.

examples:
  gpulease edit 12 --priority 1
  gpulease edit 3-9 --mem 8G --new-label night
  gpulease edit 12 --after none --at none
  gpulease edit 12 -- python train.py --lr 0.01
"""


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    add_everybody(parser)
    parser.set_defaults(command_behind=True)
    add_changes(parser)


def add_changes(parser: ArgumentParser, rows: Iterable[Field] = (*REQUEST, *JOB)) -> None:
    """All that can be changed, or these."""
    for row in rows:
        if row.change:
            help = f"{row.change}; `none` {row.none}" if row.none else row.change
            default = row.kind.option.get("default")
            flags = row.flags if row.changed_as == row.name else (f"--{row.changed_as.replace('_', '-')}",)
            add_field(parser, row, flags, dest=row.changed_as, default=default, help=help)


def run(arguments: Namespace) -> int:
    from gpulease.api.jobs import change

    select = selection(arguments.ids, **filters(arguments))
    changes = job_changes(changes_given(arguments), as_option, time.time())
    if refused("edit", arguments, arguments.ids, "waiting,held"):
        return 1
    say_done("edited", change(select, changes), arguments.ids)
    return 0


def changes_given(arguments: Namespace) -> dict[str, Any]:
    """What is to change; `none` takes back what there was."""
    names = [name for name in vars(arguments) if name not in ("ids", "label", "state", "command_behind")]
    given = {name: value for name in names if (value := getattr(arguments, name)) not in (None, [])}
    return {name: None if value in ("none", ["none"]) and name in CLEARED else value for name, value in given.items()}
