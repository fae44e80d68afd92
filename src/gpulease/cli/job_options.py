"""What is said about a job, checked before it is sent: the same for the command line and for Python."""

from __future__ import annotations

import os
import stat

from gpulease.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_WORD = (128 << 10) - 1  # bytes; the kernel starts no program with a longer one
UNSET = "Leave it out, or say what is meant: it may be an unset variable."


def full_path(path: str) -> str:
    """Not relative to this folder any more, which may be gone."""
    try:
        return os.path.abspath(path)
    except OSError:
        raise UsageError("The folder that you are in was removed.", "Go to another one, or give full paths.") from None


def folder(path: str | None) -> str:
    """Where a job runs: `path`, or this folder."""
    if path is not None and not path:
        raise UsageError("The folder to run in is empty.", UNSET)
    found = full_path("." if path is None else path)
    if not os.path.isdir(found):
        raise UsageError(f"The folder {found!r} does not exist.", "Name one that does.")
    return found


def log_path(path: str | None) -> str | None:
    """Where the output goes: a file that can be written, or a folder, which then ends with `/`."""
    if path is None:
        return None
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


def variables(given: Mapping[str, str]) -> dict[str, str]:
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UsageError(f"The variable {name!r} is not text.", "Give names and values as text.")
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name[:40]!r} is not a variable.", "A name has no `=`, and nothing has a zero byte.")
    return dict(given)


def time_limit(seconds: float | None, option: str) -> float | None:
    if seconds is not None and seconds <= 0:
        raise UsageError(f"{option} is {seconds:g}.", "Give a time above 0, as 4h.")
    return seconds


def ids(text: str, option: str) -> list[int]:
    """`3,4`, or `J3`, as the jobs to come after."""
    words = [word.strip().removeprefix("J") for word in text.split(",") if word.strip()]
    if not words:
        raise UsageError(f"{option} is empty.", UNSET)
    for word in words:
        if not (word.isascii() and word.isdecimal()) or len(word) >= 18:
            raise UsageError(f"{word[:40]!r} is no job id.", "Write ids, as 3,4.")
    return [int(word) for word in words]


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


def check_command(words: list[str]) -> None:
    wrong = wrong_with(words)
    if wrong is not None:
        raise UsageError(f"The command {wrong}.", "No program can be started so; put long text into a file.")


def moment(text: str) -> float:
    """A time of day, a date and time, or `in 2h`, as Unix seconds."""
    import time

    from gpulease.quantities import parse_seconds

    if text.startswith("in "):
        return time.time() + parse_seconds(text[3:])
    for form in ("%H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            parsed = time.strptime(text, form)
        except ValueError:
            continue
        if form != "%H:%M":
            return _local(tuple(parsed[:5]), text)
        today = time.localtime()
        moment = _local((*today[:3], parsed.tm_hour, parsed.tm_min), text)
        return moment if moment > time.time() else _local((*today[:2], today[2] + 1, *parsed[3:5]), text)
    raise UsageError(f"{text[:40]!r} is no time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.")


def _local(parts: tuple[int, ...], text: str) -> float:
    import time

    year, month, day, hour, minute = parts
    try:
        return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1))
    except (OverflowError, ValueError):
        raise UsageError(f"{text[:40]!r} is no time.", "Write 22:30, 2026-12-24T22:30 or 'in 2h'.") from None
