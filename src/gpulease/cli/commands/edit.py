"""`gpulease edit`: change jobs that wait or are held."""

from __future__ import annotations

import time

from gpulease.api.job_fields import job_changes
from gpulease.cli.commands.jobs import say_done
from gpulease.cli.job_selection import add_choice, add_everybody, filters, refused
from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.model.job_selection import selection
from gpulease.model.request_fields import as_option

EXAMPLES = """\
What is not named stays as it is.

examples:
  gpulease edit 12 --priority 1
  gpulease edit 3-9 --mem 8G --new-label night
  gpulease edit 12 --after none --at none
  gpulease edit 12 -- python train.py --lr 0.01
"""
# option, what its value is called, what it does
NUMBERS = (
    (("-n", "--gpus"), "N", "ask for so many GPUs"),
    (("-p", "--priority"), "P", "another priority; smaller is sooner"),
    (("--retry",), "N", "run again up to N times if it fails"),
)
TEXTS = (
    ("--mem", "SIZE", "share one GPU by memory, as 6G; `none` for whole GPUs"),
    ("--min-memory", "SIZE", "GPUs with at least so much memory; `none` for any"),
    ("--model", "MODELS", "GPUs of these models, as A100,V100; `none` for any"),
    ("--devices", "DEVICES", "only these, as 0,2; `none` for any"),
    ("--exclude", "DEVICES", "not these; `none` for any"),
    ("--time-limit", "TIME", "kill it after so long, as 4h; `none` for never"),
    ("--name", "NAME", "another name of the job"),
    ("--new-label", "LABEL", "another label"),
    ("--note", "TEXT", "another note"),
    ("--after", "IDS", "start after these are complete, as 3,5-9; `none` for none"),
    ("--after-any", "IDS", "start after these have ended, however; `none` for none"),
    ("--after-label", "LABEL", "start after your jobs of a label that are not over"),
    ("--after-any-label", "LABEL", "the same, however they end"),
    ("--at-most", "N", "run at most N of their sweep at a time; `none` for all"),
    ("--at", "TIME", "not before: 22:30, 2026-12-24T22:30, or in 2h; `none` for at once"),
    ("--cwd", "PATH", "another folder to run in"),
)
CLEARED = ("mem", "min_memory", "model", "devices", "exclude", "time_limit", "after", "after_any", "at_most", "at")


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    add_everybody(parser)
    parser.set_defaults(command_behind=True)
    add_changes(parser)


def add_changes(parser: ArgumentParser, only: tuple[str, ...] | None = None) -> None:
    """All that can be changed, or these."""
    for options, value, text in NUMBERS:
        if only is None or options[-1][2:] in only:
            parser.add_argument(*options, type=int, metavar=value, help=text)
    for option, value, text in TEXTS:
        if only is None or option[2:].replace("-", "_") in only:
            several: dict[str, Any] = {"action": "append", "default": []} if value == "IDS" else {}
            parser.add_argument(option, metavar=value, help=text, **several)


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
