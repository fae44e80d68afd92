"""How a message leaves: by the local sendmail, a POST, the user's terminals, or Apprise. No shell is involved.

Each has a deadline. What went wrong is told in a sentence that has nothing of the address in it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from gpulease.errors import in_words
from gpulease.notices.address import NoticeAddress
from gpulease.notices.words import Composed

NETWORK = 15.0  # seconds until a server must have answered
SENDMAIL = 30.0  # seconds for the local mail program
NO_SENDMAIL = "there is no `sendmail` here; install a mail program, or use an SMTP address of Apprise's"
MAIL_PROGRAMS = ":/usr/sbin:/usr/lib"  # beside PATH
MAX_TERMINALS = 20
TEMPORARY = (408, 425, 429)  # codes of a server that may do better a little later, as those from 500 on
NOT_INSTALLED = "Apprise is not installed; `pip install 'gpulease[notify]'` brings it"


class Undelivered(Exception):
    """Why, in a sentence without a full stop; and whether it may pass."""

    def __init__(self, why: str, temporary: bool = False) -> None:
        super().__init__(why)
        self.why, self.temporary = why, temporary


def deliver(address: NoticeAddress, message: Composed) -> None:
    """Send it once; raises Undelivered."""
    CHANNELS[address.kind](address, message)


# -------------------------------------------------------------------- the web


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Nobody else is told: a redirected POST would lose what it says, and show the secret of the address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(url: str, body: bytes, timeout: float) -> None:
    """A POST of JSON; raises OSError or ValueError."""
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "gpulease"})
    with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout):
        return


def payload(message: Composed) -> dict[str, Any]:
    """`text` is what Slack and Mattermost show, `content` what Discord does."""
    text = f"{message.title}\n{message.text}"
    return {
        "title": message.title,
        "text": text,
        "content": text[:2000],
        "count": message.number,
        "notices": list(message.notices),
    }


def _web(address: NoticeAddress, message: Composed) -> None:
    try:
        post(address.text, json.dumps(payload(message)).encode(), NETWORK)
    except urllib.error.HTTPError as trouble:
        moved = ": it is at another address now" if 300 <= trouble.code < 400 else ""
        temporary = trouble.code >= 500 or trouble.code in TEMPORARY
        raise Undelivered(f"the server answered with code {trouble.code}{moved}", temporary) from None
    except TimeoutError:
        raise Undelivered(f"the server did not answer within {NETWORK:g} s", True) from None
    except OSError as trouble:
        if isinstance(getattr(trouble, "reason", None), TimeoutError):
            raise Undelivered(f"the server did not answer within {NETWORK:g} s", True) from None
        raise Undelivered(f"the server cannot be reached: {in_words(trouble)}", True) from None
    except Exception:  # of http.client and of ours; their words may have the address in them
        raise Undelivered("the server's answer is not valid", True) from None


# -------------------------------------------------------------------- mail


def sendmail() -> str | None:
    return shutil.which("sendmail", path=os.environ.get("PATH", os.defpath) + MAIL_PROGRAMS)


def _mail(address: NoticeAddress, message: Composed) -> None:
    """The recipient stands in the header, since everybody sees the words of a process."""
    program = sendmail()
    if program is None:
        raise Undelivered(NO_SENDMAIL)
    try:
        done = subprocess.run(
            [program, "-i", "-t"], input=_letter(address, message), timeout=SENDMAIL, capture_output=True, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise Undelivered(f"`sendmail` was ended after {SENDMAIL:g} s") from None
    except OSError as trouble:
        raise Undelivered(f"`sendmail` cannot be started: {in_words(trouble)}") from None
    if done.returncode:
        raise Undelivered(f"`sendmail` ended with exit code {done.returncode}", done.returncode == os.EX_TEMPFAIL)


def _letter(address: NoticeAddress, message: Composed) -> bytes:
    """EmailMessage refuses a header with a line break in it; the title has none, being clean."""
    from email.message import EmailMessage

    letter = EmailMessage()
    letter["To"], letter["Subject"] = address.recipient, message.title
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.text + "\n")
    return letter.as_bytes()


# -------------------------------------------------------------------- terminals


def _tty(address: NoticeAddress, message: Composed) -> None:
    """On those of the user's terminals that take messages (`mesg y`), the last used first. None is waited for."""
    lines = [time.strftime("%H:%M ") + message.title, *message.text.splitlines()]
    text = "".join(f"\r\n{line}" for line in ["", *lines, ""]).encode(errors="replace")
    written = sum(_write(path, text) for path in own_terminals())
    if not written:
        raise Undelivered("no terminal of yours takes messages; `mesg y` lets one do so")


def own_terminals() -> list[str]:
    found: list[tuple[float, str]] = []
    for name in os.listdir("/dev/pts"):
        path = f"/dev/pts/{name}"
        try:
            seen = os.stat(path)
        except OSError:
            continue
        if name.isdecimal() and seen.st_uid == os.geteuid() and seen.st_mode & stat.S_IWGRP:
            found.append((-seen.st_atime, path))
    return [path for _, path in sorted(found)[:MAX_TERMINALS]]


def _write(path: str, text: bytes) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        mine = stat.S_ISCHR(os.fstat(descriptor).st_mode) and os.fstat(descriptor).st_uid == os.geteuid()
        return mine and os.write(descriptor, text) > 0
    except OSError:  # it is stopped, or was closed
        return False
    finally:
        os.close(descriptor)


# -------------------------------------------------------------------- Apprise


def apprise_of(address: NoticeAddress) -> Any:
    """Its object for this address; raises Undelivered."""
    import logging

    try:
        import apprise
    except ImportError:
        raise Undelivered(NOT_INSTALLED) from None
    logging.getLogger("apprise").disabled = True  # it writes addresses
    asset = apprise.AppriseAsset(app_id="gpulease", async_mode=False)
    found = apprise.Apprise.instantiate(address.text, asset=asset, suppress_exceptions=True)
    if found is None:
        raise Undelivered("Apprise does not know such an address")
    return found


def _apprise(address: NoticeAddress, message: Composed) -> None:
    service = apprise_of(address)
    try:
        done = service.notify(title=message.title, body=message.text, body_format="text")  # or lines would be joined
    except Exception:
        done = False
    if not done:
        raise Undelivered("Apprise could not deliver it; `apprise -vv ADDRESS -b test` tells why", True)


CHANNELS: dict[str, Callable[[NoticeAddress, Composed], None]] = {
    "web": _web,
    "mail": _mail,
    "tty": _tty,
    "apprise": _apprise,
}
