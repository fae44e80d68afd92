"""What jobs are to run, refused before it is queued when it cannot be started: as the job will look for it.

The client checks it, for the broker never touches users' disks.
"""

from __future__ import annotations

import os

from gpulease.errors import CommandNotFound, UsageError
from gpulease.execution import check_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FORCE = "--force queues it all the same."


def by_shell(text: str) -> list[str]:
    """The words with which a shell runs a command line."""
    return ["sh", "-c", text]


def refuse_unstartable(
    commands: list[list[str]], options: Mapping[str, Any], file: str = "", lines: list[int] | None = None
) -> None:
    """Raise if a command cannot be started in the folder and with the environment of `options` (see job_fields).

    `lines`: the number of the line of `file` in which each stands.
    """
    found: set[str] = set()
    for place, words in enumerate(commands):
        if words[0] in found:
            continue
        try:
            check_command(words[0], options["environment"].get("PATH", os.defpath), options["cwd"])
        except CommandNotFound as trouble:
            raise _refusal(words, trouble, f"Line {lines[place]} of {file!r}: " if lines else "") from None
        found.add(words[0])


def _refusal(words: list[str], trouble: CommandNotFound, place: str) -> UsageError:
    program = words[0]
    what, step = trouble.what.rstrip("."), trouble.next_step
    name, equals, _ = program.partition("=")
    if " " in program.strip():
        step += " --shell has a shell run it."
    elif equals and name.isidentifier():
        what += ": it sets a variable, which a shell would do"
        step = f"Use `env {program[:40]} COMMAND`, or --shell."
    if place:
        what = place + what[:1].lower() + what[1:]
        step = f"Nothing was queued. {step}"
    return UsageError(f"{what[:300]}.", f"{step} {FORCE}")
