"""The options of requests and jobs, as `run`, `get`, `shell` and `add` have them; a warning about containers."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

from gpulease.cli.parsing import Any, ArgumentParser, Namespace
from gpulease.errors import UsageError, in_words
from gpulease.model.fields import JOB, REQUEST, Field, as_option, request_fields, seconds
from gpulease.model.shell_text import quoted
from gpulease.model.visible import wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def add_field(parser: Any, row: Field, flags: tuple[str, ...] = (), **other: Any) -> None:
    """The option of a field, as its row says, but for what is `other`."""
    about = {"default": row.default, **({} if row.metavar is None else {"metavar": row.metavar}), **row.kind.option}
    parser.add_argument(*(flags or row.flags), **({"dest": row.name} | about | {"help": row.help} | other))


def add_request(parser: ArgumentParser, for_help: str, waits: bool = True) -> None:
    """`waits`: somebody does, for a lease; else it is a job's."""
    group = parser.add_argument_group("request")
    add_wanted(group, for_help, job=not waits)
    if waits:
        group.add_argument("--wait", metavar="TIME", help="wait at most this long, as 30m; then exit with code 75")
        group.add_argument("--no-wait", action="store_true", help="do not wait: get it now, or exit with code 75")
        for row in JOB:
            if row.name in ("visible_by", "note"):
                add_field(group, row)


def add_wanted(group: Any, for_help: str, job: bool = False, **other: Any) -> None:
    """Which GPUs, how many, how urgent and for how long."""
    for row in REQUEST:
        if job or not row.job:
            add_field(group, row, help=for_help if row.name == "duration" else row.help, **other)


def add_job(parser: ArgumentParser) -> None:
    for row in JOB:
        if row.help:
            add_field(parser, row)


def add_of_job(parser: Any, name: str) -> None:
    """One option of jobs, for another verb."""
    add_field(parser, next(row for row in JOB if row.name == name))


def enter_folder(named: str | None) -> None:
    """Go to the folder that --cwd names. One that is not there is told of before a long wait."""
    if named is None:
        return
    from gpulease.api.job_commands import folder

    try:
        os.chdir(folder(named))
    except OSError as trouble:
        raise UsageError(f"The folder {named!r} cannot be entered: {in_words(trouble)}.", "Name another.") from None
    os.environ["PWD"] = os.getcwd()


def acquire_fields(arguments: Namespace, kind: str) -> dict[str, Any]:
    """The fields of an `acquire` message."""
    if arguments.wait is not None and arguments.no_wait:
        raise UsageError("--wait and --no-wait were both given.", "Leave one of the two out.")
    wanted(arguments.visible_by, os.environ)  # what is wrong is said before a long wait
    wait = 0.0 if arguments.no_wait else None if arguments.wait is None else seconds(arguments.wait, "--wait")
    return {"request": request_fields(vars(arguments), as_option), "kind": kind, "wait": wait, "note": arguments.note}


def export_lines(variables: dict[str, str]) -> str:
    """Quoted: names of devices come from a broker, which may be another user's program."""
    return "\n".join(f"export {name}={quoted(value)}" for name, value in variables.items())


TOOLS = ("docker", "podman", "nerdctl")
INSTEAD = "Use $(gpulease docker-args) in its place: `gpulease help containers`"


def warn_of_all_gpus(commands: Iterable[list[str]]) -> None:
    found = next(filter(None, map(gpus_beside, commands)), None)
    if found is not None:
        said = f"gpulease: with `{found}` the container sees GPUs that are not of its lease. {INSTEAD}."
        print(said, file=sys.stderr, flush=True)


def gpus_beside(command: list[str]) -> str | None:
    """The option that names other GPUs than a lease can: all, or the first so many. Also inside a shell's text."""
    text = " ".join(command)
    if not any(tool in text for tool in TOOLS) or "gpu" not in text:
        return None
    words = text.translate({ord(letter): " " for letter in "=\"'"}).split()
    for option, value in pairwise(words):
        if option == "--gpus" and (value == "all" or value.isdecimal()):
            return f"--gpus {value}"
        if option.endswith("nvidia.com/gpu") and value == "all":
            return f"--device {option}={value}"
    return None
