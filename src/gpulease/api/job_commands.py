"""What jobs are to run, refused before it is queued when it cannot be started: as the job will look for it.

The client checks it, for the broker never touches users' disks.
"""

from __future__ import annotations

import os

from gpulease.errors import CommandNotFound, UsageError
from gpulease.model.request_fields import as_argument
from gpulease.system.execution import check_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from gpulease.model.request_fields import Said

INTERPRETERS = ("python", "pypy", "Rscript", "julia")
FLAGS = frozenset("bBdEiIOPqsSuvx")  # of Python's options, those without a value


def by_shell(text: str) -> list[str]:
    """The words with which a shell runs a command line."""
    return ["sh", "-c", text]


def refuse_unstartable(
    commands: list[list[str]],
    options: Mapping[str, Any],
    file: str = "",
    lines: list[int] | None = None,
    said: Said = as_argument,
) -> None:
    """Raise if a command cannot be started in the folder and with the environment of `options` (see job_fields).

    `lines`: the number of the line of `file` in which each stands.
    """
    found: set[str] = set()
    # What comes before, or whoever lets it go, may write the script.
    comes_after = options.get("after") or options.get("after_label") or options.get("hold")
    for place, words in enumerate(commands):
        script = None if comes_after else interpreted(words)
        if words[0] in found and (script is None or script in found):
            continue
        try:
            if words[0] not in found:
                check_command(words[0], options["environment"].get("PATH", os.defpath), options["cwd"])
            if script is not None and not os.path.exists(os.path.join(options["cwd"], script)):
                step = f"{os.path.basename(words[0])} would look for it in {options['cwd']}."
                raise CommandNotFound(f"The script {script[:80]!r} does not exist.", step)
        except CommandNotFound as trouble:
            raise _refusal(words, trouble, f"Line {lines[place]} of {file!r}: " if lines else "", said) from None
        found |= {words[0], script or words[0]}


def interpreted(words: list[str]) -> str | None:
    """The file that an interpreter is to run; None where that cannot be told for sure."""
    if os.path.basename(words[0]).rstrip("0123456789.") not in INTERPRETERS:
        return None
    for word in words[1:]:
        if not word.startswith("-"):
            return word
        if not FLAGS.issuperset(word[1:]) or word == "-":
            return None  # -c, -m, or an option whose value may come next
    return None


def _refusal(words: list[str], trouble: CommandNotFound, place: str, said: Said) -> UsageError:
    program = words[0]
    what, step = trouble.what.rstrip("."), trouble.next_step
    name, equals, _ = program.partition("=")
    if " " in program.strip():
        step += f" {said('shell')} has a shell run it."
    elif equals and name.isidentifier():
        what += ": it sets a variable, which a shell would do"
        step = f"Use `env {program[:40]} COMMAND`, or {said('shell')}."
    if place:
        what = place + what[:1].lower() + what[1:]
        step = f"Nothing was queued. {step}"
    return UsageError(f"{what[:300]}.", f"{step} {said('force')} queues it all the same.")


SCRIPTS = (".py", ".sh", ".bash", ".zsh", ".R", ".r", ".jl", ".pl", ".rb", ".lua", ".ipynb")
LOOKED_AT = 12  # words of a command


def script_of(commands: list[list[str]], cwd: str) -> dict[str, Any]:
    """The file that all of these commands run, and when it was last changed; nothing where none is seen."""
    word = (
        next((word for word in _inner(commands[0])[:LOOKED_AT] if word.endswith(SCRIPTS)), None) if commands else None
    )
    if word is None or not all(any(word in part for part in words) for words in commands):
        return {}
    path = os.path.join(cwd, word)
    try:
        changed = os.stat(path).st_mtime_ns // 1_000_000
    except (OSError, ValueError):
        return {}
    return {"script": path, "script_time": changed} if changed > 0 and os.path.isfile(path) else {}


def _inner(words: list[str]) -> list[str]:
    """The words, or those of the text that a shell is given with `-c`."""
    if len(words) < 3 or words[1] != "-c" or os.path.basename(words[0]) not in ("sh", "bash", "zsh", "dash"):
        return words
    return words[2].replace(";", " ").replace("&", " ").split()
