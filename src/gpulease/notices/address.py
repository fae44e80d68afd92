"""Where notices go, as `mailto:ada@example.org`, `https://…` or `tty`; and the user's own file that says it.

An address may have a secret in it. It is shown as far as its host, and never sent to the broker.

Only processes of the user open them: `gpulease notify` and the process that the user's agent starts to send.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from gpulease.errors import NotFound, StateError, UsageError, in_words

LONGEST = 2000  # letters
MAIL = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}(@[A-Za-z0-9.-]{1,255})?")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,30}")
KINDS = "Give mailto:you@example.org, https://…, tty, or an address of Apprise's."


class NoticeAddress(NamedTuple):
    kind: str  # mail, web, tty, apprise
    text: str  # all of it, with its secret

    @property
    def shown(self) -> str:
        """Without what may be secret."""
        if self.kind in ("tty", "mail"):
            return self.text
        parts = urlsplit(self.text)
        host = parts.hostname if self.kind == "web" else None  # of Apprise's addresses the host may be a token
        port = f":{parts.port}" if host and parts.port else ""
        return f"{parts.scheme}://{host or ''}{port}{'/' if host else ''}…"

    @property
    def recipient(self) -> str:
        return self.text.removeprefix("mailto:")


def read_address(text: str) -> NoticeAddress:
    """The address, checked for its form; raises UsageError, which does not repeat it."""
    if not text or len(text) > LONGEST or not text.isprintable() or " " in text:
        raise UsageError("The address is empty, too long, or has spaces or control characters in it.", KINDS)
    if text == "tty":
        return NoticeAddress("tty", text)
    scheme = text.partition(":")[0]
    if ":" not in text or not SCHEME.fullmatch(scheme):
        raise UsageError("The address has no scheme.", KINDS)
    if scheme == "mailto" and not text.startswith("mailto://"):  # with slashes it is Apprise's, by SMTP
        return _mail(text)
    if scheme in ("http", "https"):
        return _web(text)
    if "://" not in text:
        raise UsageError(f"{scheme}: is not a known kind of address.", KINDS)
    return NoticeAddress("apprise", text)


def _mail(text: str) -> NoticeAddress:
    if not MAIL.fullmatch(text.removeprefix("mailto:")):
        raise UsageError("That is not a mail address.", "Give one, as mailto:ada@example.org.")
    return NoticeAddress("mail", text)


def _web(text: str) -> NoticeAddress:
    parts = _split(text)
    if not parts.hostname:
        raise UsageError("The address has no host.", "Give all of it, as https://hooks.example.com/services/….")
    if parts.username is not None or parts.password is not None:
        raise UsageError("A user and a password in the address are not sent.", "Use Apprise's jsons://USER:PASSWORD@….")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise UsageError("By http:// everybody on the way can read the notices.", "Give https://….")
    return NoticeAddress("web", text)


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises where it is none
        return parts
    except ValueError:
        raise UsageError("The address is not a URL.", KINDS) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -------------------------------------------------------------------- the user's own file

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
        raise UsageError("The file with the address for notices is damaged.", "Set it again: `gpulease notify set`.")
    return read_address(found["address"])


def write(path: str, address: NoticeAddress) -> None:
    """How the last message fared is forgotten: it went to another address."""
    _write(path, {"address": address.text})
    with contextlib.suppress(OSError):
        os.unlink(_last(path))


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
                "The file with the address for notices is not private.", "Set it again with `gpulease notify set`."
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
