"""The user's own file with the address of notices, mode 0600, and beside it how the last message fared.

Only processes of the user open them: `gpulease notify` and the process that the user's agent starts to send.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Mapping
from typing import Any

from gpulease.errors import NotFound, StateError, UsageError, in_words
from gpulease.notices.address import NoticeAddress, read_address

NAME = "notify.json"
LAST = "notify-last.json"
MOST = 1 << 16  # bytes


def path_of(environ: Mapping[str, str]) -> str:
    folder = environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(os.path.abspath(folder), "gpulease", NAME)


def read(path: str) -> NoticeAddress:
    """Raises NotFound where there is none, and UsageError where it is not to be trusted."""
    found = _read(path)
    if found is None:
        raise NotFound("No address for notices is set.", "Set one with `gpulease notify set ADDRESS`.")
    if not isinstance(found.get("address"), str):
        raise UsageError("The file with the address of notices is not right.", "Set it anew: `gpulease notify set`.")
    return read_address(found["address"])


def write(path: str, address: NoticeAddress) -> None:
    _write(path, {"address": address.text})
    with contextlib.suppress(OSError):
        os.unlink(_last(path))  # how a message to another address fared


def remove(path: str) -> bool:
    """Whether there was one."""
    with contextlib.suppress(OSError):
        os.unlink(_last(path))
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as trouble:
        raise StateError(f"The address of notices cannot be removed: {in_words(trouble)}.") from None
    return True


def last(path: str) -> dict[str, Any] | None:
    """How the last message fared: `time`, `count` of notices, `trouble` or None, and whether it was a `test`."""
    with contextlib.suppress(UsageError, StateError):
        return _read(_last(path))
    return None


def write_last(path: str, count: int, trouble: str | None, test: bool = False) -> None:
    """As well as it can be: a full disk keeps nobody from a notice."""
    with contextlib.suppress(StateError):
        _write(_last(path), {"time": time.time(), "count": count, "trouble": trouble, "test": test})


def write_test(path: str) -> None:
    """A test was sent. It takes the place of no notice: how that fared says more."""
    if (last(path) or {"test": True}).get("test"):
        write_last(path, 1, None, test=True)


def _last(path: str) -> str:
    return os.path.join(os.path.dirname(path), LAST)


def _read(path: str) -> dict[str, Any] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as trouble:
        raise StateError(f"The address of notices cannot be read: {in_words(trouble)}.") from None
    with open(descriptor, "rb") as file:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o077:
            raise UsageError(
                "The file with the address of notices is not yours alone.", "Set it anew with `gpulease notify set`."
            )
        with contextlib.suppress(ValueError):
            found = json.loads(file.read(MOST))
            return found if isinstance(found, dict) else {}
    return {}


def _write(path: str, document: dict[str, Any]) -> None:
    """Whole or not at all, and never readable by others."""
    partial = f"{path}.{os.getpid()}"
    try:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            json.dump(document, file)
        os.replace(partial, path)
    except OSError as trouble:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise StateError(f"{path!r} cannot be written: {in_words(trouble)}.") from None
