"""What is said about a job, checked before it is sent: the same for the command line and for Python."""

from __future__ import annotations

import os
import stat

from gpulease.errors import UsageError
from gpulease.model.job_selection import to_come_after
from gpulease.model.quantities import matching
from gpulease.model.request_fields import UNSET, as_argument, changed_fields, seconds
from gpulease.model.visible import VARIABLE, wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from gpulease.model.request_fields import Said

LONGEST_WORD = (128 << 10) - 1  # bytes; the kernel starts no program with a longer one
AFTER = ("after", "after_any", "after_label", "after_any_label")
TEXTS = ("name", "label", "note")


def job_fields(given: Mapping[str, Any], said: Said = as_argument) -> dict[str, Any]:
    """The options of new jobs in a message; what was not given is left out."""
    named = variables({**(given.get("env") or {}), **_visible(given, said)})
    options = {
        "cwd": folder(given.get("cwd")),
        "environment": {**without(own_environment(), given.get("no_env") or ()), **named},
        "env_kept": list(named),
        "log": log_path(given.get("log")),
        "retry": given.get("retry"),
        "time_limit": _time_limit(given.get("time_limit"), said("time_limit")),
        "hold": given.get("hold"),
        "at_most": _at_most(given.get("at_most"), said("at_most")),
        "notify": _notify(given.get("notify"), said("notify")),
        **_after(given, said),
        **{name: given.get(name) for name in TEXTS},
    }
    return {name: value for name, value in options.items() if value is not None and value != [] and value is not False}


def _visible(given: Mapping[str, Any], said: Said) -> dict[str, str]:
    """How the job's GPUs are named to it is in its environment, where it also comes from if nothing was said."""
    asked = given.get("visible_by")
    wanted(asked, os.environ, said("visible_by"))
    return {} if asked is None else {VARIABLE: asked}


def job_changes(given: Mapping[str, Any], said: Said, now: float) -> dict[str, Any]:
    """The changes of jobs that wait: only what is given, where None takes back what there was."""
    changes = {name: given[name] for name in ("retry", "name", "note") if name in given}
    changes |= {"label": given["new_label"]} if "new_label" in given else {}
    changes |= _after({name: () if given[name] is None else given[name] for name in AFTER if name in given}, said)
    if "cwd" in given:
        changes["cwd"] = folder(given["cwd"])
    if "time_limit" in given:
        changes["time_limit"] = _time_limit(given["time_limit"], said("time_limit"))
    if "at_most" in given:
        changes["at_most"] = _at_most(given["at_most"], said("at_most"))
    if "command" in given:
        changes["command"] = command_words(given["command"])
    request = changed_fields(given, said, now)
    if request:
        changes["request"] = request
    if not changes:
        step = f"See `gpulease edit --help`. Another label is {said('new_label')}: {said('label')} chooses jobs."
        raise UsageError("Nothing to change was given.", step)
    return changes


def _after(given: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """The jobs to come after, if they are complete or however they end; `after_any` may be True beside the others."""
    if not any(name in given for name in AFTER):
        return {}
    found: dict[str, Any] = {name: to_come_after(given[name], said(name)) for name in _jobs_in(given)}
    found |= {name: _label(given[name], said(name)) for name in AFTER[2:] if given.get(name) not in (None, ())}
    named = [name for name, value in found.items() if value != []]
    however = [name for name in named if name.startswith("after_any")]
    if however and len(however) < len(named):
        first = next(name for name in named if name not in however)
        raise UsageError(f"{said(first)} and {said(however[0])} were both given.", "Leave one of the two out.")
    label = found.get("after_label") or found.get("after_any_label")
    return {
        "after": found.get("after") or found.get("after_any") or [],
        "after_any": bool(however) or given.get("after_any") is True,
        **({} if label is None else {"after_label": label}),
    }


def _jobs_in(given: Mapping[str, Any]) -> list[str]:
    return [name for name in AFTER[:2] if given.get(name) is not None and not isinstance(given[name], bool)]


def _label(value: Any, said: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{said} is {value!r}.", "Give the label of the jobs; it may be an unset variable.")
    return value


def _at_most(value: Any, said: str) -> int | None:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise UsageError(f"{said} is {value!r}.", "Give how many jobs of the sweep may run at a time, as 8.")
    return number


def _notify(value: Any, said: str) -> list[str] | None:
    if value is None or value is False:
        return None
    from gpulease.notices.kinds import NONE, of_job

    return of_job(value, said) or [NONE]


def _time_limit(value: Any, said: str) -> float | None:
    limit = None if value is None else seconds(value, said)
    if limit is not None and limit <= 0:
        raise UsageError(f"{said} is {limit:g}.", "Give a time above 0, as 4h.")
    return limit


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
            raise UsageError(f"The log {path!r} is no ordinary file: nobody may read it.", "Name a file or a folder.")
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


def variables(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"The variable {name!r} is not text.", "Give names and values as text.")
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name[:40]!r} is not a variable.", "A name has no `=`, and nothing has a zero byte.")
    return dict(given)


def wrong_with(words: list[str]) -> str | None:
    """Why no program can be started with these words; None when one can."""
    if not words or not words[0]:
        return "is empty"
    for word in words:
        if "\0" in word:
            return "has a zero byte in it"
        if len(word) * 4 > LONGEST_WORD and len(word.encode("utf-8", "replace")) > LONGEST_WORD:
            return f"has a word of more than {LONGEST_WORD} bytes"
    return None


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


def command_words(command: Sequence[object]) -> list[str]:
    if isinstance(command, str) or not command:
        raise UsageError(f"The command is {command!r}.", "Give its words as a list, as ['python', 'train.py'].")
    words = [str(word) for word in command]
    wrong = wrong_with(words)
    if wrong is not None:
        raise UsageError(f"The command {wrong}.", "No program can be started so; put long text into a file.")
    return words
