"""PURE: where notices go: `mailto:ada@example.org`, `https://…`, `tty`, or an address of Apprise's.

An address may have a secret in it. It is shown as far as its host, and never sent to the broker.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from gpulease.errors import UsageError

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
        raise UsageError(f"{scheme}: is no kind of address.", KINDS)
    return NoticeAddress("apprise", text)


def _mail(text: str) -> NoticeAddress:
    if not MAIL.fullmatch(text.removeprefix("mailto:")):
        raise UsageError("That is no mail address.", "Give one, as mailto:ada@example.org.")
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
        raise UsageError("The address is no URL.", KINDS) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
