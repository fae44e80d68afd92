"""What a job gets of this machine, checked before it is queued: its command, folder, log and variables.

The client checks it, for the broker never touches users' disks.
"""

from __future__ import annotations

import os
import stat

from gpulease.errors import CommandNotFound, UsageError
from gpulease.model import fields
from gpulease.model.fields import UNSET, as_argument, command_words
from gpulease.model.quantities import matching
from gpulease.model.visible import VARIABLE, wanted
from gpulease.system.execution import check_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gpulease.model.fields import Said

INTERPRETERS = ("python", "pypy", "Rscript", "julia")
FLAGS = frozenset("bBdEiIOPqsSuvx")  # of Python's options, those without a value


def job_fields(given: Mapping[str, Any], said: Said = as_argument) -> dict[str, Any]:
    """The options of new jobs in a message; what was not given is left out."""
    log, cwd = log_path(given.get("log")), folder(given.get("cwd"))
    named = variables({**(given.get("env") or {}), **_visible(given, said)})
    environment = {**without(own_environment(), given.get("no_env") or ()), **named}
    options = fields.job_fields({**given, "log": log, "cwd": cwd}, said)
    return {**options, "environment": environment, **({"env_kept": list(named)} if named else {})}


def _visible(given: Mapping[str, Any], said: Said) -> dict[str, str]:
    """How the job's GPUs are named to it is in its environment, where it also comes from if nothing was said."""
    asked = given.get("visible_by")
    wanted(asked, os.environ, said("visible_by"))
    return {} if asked is None else {VARIABLE: asked}


def job_changes(given: Mapping[str, Any], said: Said, now: float) -> dict[str, Any]:
    """As in model/fields.py, with the folder looked up."""
    found = {**given, "cwd": folder(given["cwd"])} if "cwd" in given else given
    return fields.job_changes(found, said, now)


def full_path(path: str) -> str:
    """Not relative to this folder any more, which may be gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        raise UsageError("The folder that you are in was removed.", "Go to another one, or give full paths.") from None


def folder(given: str | os.PathLike[str] | None) -> str:
    """Where a job runs: there, or in this folder."""
    path = None if given is None else os.fspath(given)
    if path is not None and not path:
        raise UsageError("The folder to run in is empty.", UNSET)
    found = full_path("." if path is None else path)
    if not os.path.isdir(found):
        raise UsageError(f"The folder {found!r} does not exist.", "Name one that does.")
    return found


def log_path(given: str | os.PathLike[str] | None) -> str | None:
    """Where the output goes: a file that can be written, or a folder, which then ends with `/`.

    The broker does not look at it, for it never touches users' disks.
    """
    if given is None:
        return None
    path = os.fspath(given)
    if not path:
        raise UsageError("The path of the log is empty.", UNSET)
    full = full_path(path) + ("/" if path.endswith("/") or os.path.isdir(path) else "")
    if not full.endswith("/") and os.path.exists(full):
        mode = os.stat(full).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
            raise UsageError(f"The log {path!r} is not a regular file.", "Name a file or a folder.")
        writable = os.access(full, os.W_OK)
    else:
        place = os.path.dirname(full)
        writable = os.path.isdir(place) and os.access(place, os.W_OK)
    if not writable:
        raise UsageError(f"The log cannot be written to {path!r}.", "Name a file in a folder that you may write in.")
    return full


def own_environment() -> dict[str, str]:
    """What a job gets of its submitter: the variables, and the mode of the files that it makes."""
    mask = os.umask(0o077)
    os.umask(mask)
    return {**os.environ, "GPULEASE_UMASK": f"{mask:03o}"}


def without(environ: dict[str, str], patterns: str | Iterable[str]) -> dict[str, str]:
    """The variables whose names are not like one of the patterns."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    if not all(isinstance(pattern, str) and pattern for pattern in patterns):
        raise UsageError("A variable to leave out has no name.", UNSET)
    left_out = matching(environ, patterns)
    return {name: value for name, value in environ.items() if name not in left_out}


def swept(
    command: list[str], texts: dict[str, str], values: Mapping[str, list[str]], force: bool = False
) -> tuple[list[list[str]], dict[str, str], list[dict[str, str]]]:
    """A command for each combination of values; the texts that all jobs have, or else those of each."""
    from gpulease.model.sweeps import expand, refuse_unfilled

    if not force:
        refuse_unfilled(command, values)
    made = expand(command, texts, values)
    commands = [command_words(words) for words, _ in made]
    if all(filled == texts for _, filled in made):
        return commands, with_log(texts), []
    return commands, {}, [with_log(filled) for _, filled in made]


def with_log(texts: dict[str, str]) -> dict[str, str]:
    log = log_path(texts.get("log"))
    return texts if log is None else {**texts, "log": log}


def variables(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"The variable {name!r} is not text.", "Give names and values as text.")
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name[:40]!r} is not a variable.", "A name has no `=`, and nothing has a zero byte.")
    return dict(given)


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
    """Raise if a command cannot be started in the folder and with the environment of `options`.

    `lines`: the number of the line of `file` in which each stands.
    """

    found: set[str] = set()
    # An earlier job, or the user who releases it, may write the script.
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
    return UsageError(f"{what[:300]}.", f"{step} {said('force')} queues it anyway.")


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
