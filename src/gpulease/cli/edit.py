"""`gpulease edit`: change jobs that wait or are held."""

from __future__ import annotations

from gpulease.cli import job_options
from gpulease.cli.choosing import add_choice, ask, choice, say
from gpulease.cli.parsing import ArgumentParser, Namespace
from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

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
    ("--name", "NAMES", "GPUs of these names, as A100,V100; `none` for any"),
    ("--time-limit", "TIME", "kill it after so long, as 4h; `none` for never"),
    ("--name-job", "NAME", "another name of the job"),
    ("--new-label", "LABEL", "another label"),
    ("--note", "TEXT", "another note"),
    ("--after", "IDS", "start after these are complete, as 3,4; `none` for none"),
    ("--after-any", "IDS", "start after these have ended, however; `none` for none"),
    ("--at", "TIME", "not before: 22:30, 2026-12-24T22:30, or in 2h; `none` for at once"),
    ("--cwd", "PATH", "another folder to run in"),
)


def configure(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_choice(parser)
    parser.set_defaults(command_behind=True)
    for options, value, text in NUMBERS:
        parser.add_argument(*options, type=int, metavar=value, help=text)
    for option, value, text in TEXTS:
        parser.add_argument(option, metavar=value, help=text)


def run(arguments: Namespace) -> int:
    changes = _changes({name: value for name, value in vars(arguments).items() if value is not None})
    if not changes:
        raise UsageError("Nothing to change was given.", "See `gpulease edit --help`.")
    select = choice(arguments)
    return say("edited", ask("edit", select, changes=changes), select)


def _changes(given: dict[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {name: given[name] for name in ("retry", "note") if name in given}
    for option, field in (("name_job", "name"), ("new_label", "label")):
        if option in given:
            changes[field] = given[option]
    changes |= _changed_after(given)
    if "cwd" in given:
        changes["cwd"] = job_options.folder(given["cwd"])
    if "time_limit" in given:
        changes["time_limit"] = _or_none(given["time_limit"], _limit)
    if given.get("command"):
        job_options.check_command(given["command"])
        changes["command"] = given["command"]
    request = _changed_request(given)
    return {**changes, "request": request} if request else changes


def _changed_after(given: dict[str, Any]) -> dict[str, Any]:
    options = [option for option in ("after", "after_any") if option in given]
    if len(options) == 2:
        raise UsageError("--after and --after-any were both given.", "Leave one of the two out.")
    if not options:
        return {}
    option = options[0]
    name = f"--{option.replace('_', '-')}"
    found = _or_none(given[option], lambda text: job_options.ids(text, name))
    return {"after": found or [], "after_any": option == "after_any"}


def _changed_request(given: dict[str, Any]) -> dict[str, Any]:
    from gpulease.cli.requests import listed
    from gpulease.quantities import parse_bytes

    request: dict[str, Any] = {name: given[name] for name in ("gpus", "priority") if name in given}
    if "mem" in given:
        request["memory"] = _or_none(given["mem"], parse_bytes)
    if "min_memory" in given:
        request["min_memory"] = _or_none(given["min_memory"], parse_bytes)
    if "at" in given:
        request["not_before"] = _or_none(given["at"], job_options.moment)
    if "name" in given:
        request["names"] = _or_none(given["name"], lambda text: listed("--name", text)) or []
    return request


def _or_none(text: str, read: Callable[[str], Any]) -> Any:
    return None if text == "none" else read(text)


def _limit(text: str) -> float | None:
    from gpulease.quantities import parse_seconds

    return job_options.time_limit(parse_seconds(text), "--time-limit")
