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

INTERPRETERS = ("python", "pypy", "Rscript", "julia")
FLAGS = frozenset("bBdEiIOPqsSuvx")  # of Python's options, those without a value
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
    found: set[tuple[str, str | None]] = set()
    later = any(options.get(name) for name in ("after", "after_any", "after_label"))  # what makes the script, perhaps
    for place, words in enumerate(commands):
        script = None if later else script_of(words)
        if (words[0], script) in found:
            continue
        try:
            check_command(words[0], options["environment"].get("PATH", os.defpath), options["cwd"])
            _check_script(words[0], script, options["cwd"])
        except CommandNotFound as trouble:
            raise _refusal(words, trouble, f"Line {lines[place]} of {file!r}: " if lines else "") from None
        found.add((words[0], script))


def script_of(words: list[str]) -> str | None:
    """The file that an interpreter is to run; None where that cannot be told for sure."""
    if os.path.basename(words[0]).rstrip("0123456789.") not in INTERPRETERS:
        return None
    for word in words[1:]:
        if not word.startswith("-"):
            return word
        if not FLAGS.issuperset(word[1:]) or word == "-":
            return None  # -c, -m, or an option whose value may come next
    return None


def _check_script(program: str, script: str | None, folder: str) -> None:
    if script is not None and not os.path.exists(os.path.join(folder, script)):
        raise CommandNotFound(
            f"{os.path.basename(program)} would not find its script {script!r} in {folder!r}.",
            "Check the spelling, or use --cwd.",
        )


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
