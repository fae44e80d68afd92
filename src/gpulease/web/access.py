"""Access to the page, to read and to act, by token, cookie, Host, Origin and proxy. A wrong token gets a late answer.

Nothing here asks the network or the clock. What is compared with a secret is compared in constant time.

Who has the right token is never kept waiting. Of those who wait there are only so many: more are refused at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import NamedTuple
from urllib.parse import urlsplit

from gpulease.model.quantities import pause_after
from gpulease.web.picture import Viewer

LOOPBACK = ("localhost", "127.0.0.1", "::1")
LONGEST = 256  # characters of a name or a token from a stranger


class Refusal(NamedTuple):
    status: int
    what: str
    guessed: bool = False  # a token was given, and it was wrong


class Visit(NamedTuple):
    """What of a request says who asks."""

    peer: str  # its address, by the kernel's word
    host: str
    headers: Mapping[str, str]
    token: str | None = None  # of the address
    cookie: str | None = None


class Access(NamedTuple):
    user: str  # who runs the server
    token: str
    hosts: frozenset[str] = frozenset(LOOPBACK)
    public: bool = False
    actions: bool = False
    user_header: str | None = None
    proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")

    def viewer(self, asked: Visit) -> Viewer | Refusal:
        if not self._is_our_host(asked.host):
            return Refusal(421, "This address is not known here. Name it with --allow-host.")
        if self.user_header is not None:
            return self._named_by_proxy(asked)
        if self.public:
            return Viewer("", public=True)
        given = _bearer(asked.headers) or asked.token
        if given is not None:
            right = _same(given, self.token)
        elif asked.cookie is not None:
            right = _same(asked.cookie, self.cookie)  # of an earlier server perhaps: no guess
        else:
            return Refusal(403, "A token is needed: open the address that `gpulease web` printed.")
        guessed = given is not None or not (asked.cookie or "").isascii()  # no server of ours gave such a cookie
        return self._known(self.user) if right else Refusal(403, "The token is wrong.", guessed)

    def _named_by_proxy(self, asked: Visit) -> Viewer | Refusal:
        """On a machine of many users any of them can speak from loopback, so the proxy shows the token too."""
        assert self.user_header is not None
        if not _is_among(asked.peer, self.proxies):
            return Refusal(403, "Only the proxy may use this page.")
        given = _bearer(asked.headers)
        if given is None or not _same(given, self.token):
            return Refusal(403, "The proxy did not show the token.", guessed=given is not None)
        name = _only(asked.headers, self.user_header)
        if not name or len(name) > LONGEST or not name.isprintable():
            return Refusal(403, f"The proxy did not send exactly one header {self.user_header} with your name.")
        return self._known(name)._replace(public=True)

    @property
    def for_others(self) -> bool:
        return self.public or self.user_header is not None

    @property
    def by_token(self) -> bool:
        """Whether a cookie may be given: only who has shown the token is seen as a viewer."""
        return not self.for_others

    def _known(self, user: str) -> Viewer:
        return Viewer(user, action_token=self._derived(f"action {user}") if self.actions else "")

    @property
    def cookie(self) -> str:
        """Not the token itself, which is in the address."""
        return self._derived("cookie")

    def _derived(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), purpose.encode(), hashlib.sha256).hexdigest()[:32]

    def may_act(self, viewer: Viewer, origin: str | None, host: str, token: str) -> Refusal | None:
        """None where it may: a page of ours asked, and its user meant it."""
        if not viewer.action_token:
            return Refusal(403, "This page is read-only. Start it with --actions to change your own jobs.")
        if origin is None or origin.partition("://")[2] != host:
            return Refusal(403, "The request came from another page.")
        return None if _same(token, viewer.action_token) else Refusal(403, "This form is out of date. Reload the page.")

    def _is_our_host(self, host: str) -> bool:
        """Any port, since a tunnel has another. A name that a stranger's DNS leads here is not ours; numbers are."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.hosts or _address(name) is not None


def _only(headers: Mapping[str, str], name: str) -> str:
    """Its value, if the header is there once: of two, one may be the browser's.

    Proxies differ in whether `X_Remote_User` is the same header, so one that looks like it counts as a second.
    """
    alike = [(key, value) for key, value in headers.items() if _spelled(key) == _spelled(name)]
    return alike[0][1] if len(alike) == 1 and alike[0][0].lower() == name.lower() else ""


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


def _bearer(headers: Mapping[str, str]) -> str | None:
    kind, _, value = _only(headers, "Authorization").partition(" ")
    return value.strip() if kind.lower() in ("bearer", "token") and value else None


def _same(given: str, secret: str) -> bool:
    """What a stranger gives may be no text at all, as the byte 0xff: that is a wrong one like others."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())


def _is_among(address: str, networks: tuple[str, ...]) -> bool:
    known = _address(address.partition("%")[0])
    return known is not None and any(known in ip_network(network, strict=False) for network in networks)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None


# -------------------------------------------------------------------- wrong tokens

FIRST, MOST = 0.25, 8.0  # seconds
FORGET = 60.0  # seconds without a wrong one, after which the next counts as the first
WAITING = 64


class Slowdown:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._wrong, self._last, self._waiting = 0, 0.0, 0

    def next_delay(self) -> float | None:
        """Of a wrong one that came now; None when too many wait already."""
        if self._waiting >= WAITING:
            return None
        now = self._now()
        if now - self._last > FORGET:
            self._wrong = 0
        self._wrong, self._last = self._wrong + 1, now
        return pause_after(self._wrong, FIRST, MOST)

    async def wait(self) -> bool:
        """Whether it was waited; not, when too many do."""
        delay = self.next_delay()
        if delay is None:
            return False
        self._waiting += 1
        try:
            await asyncio.sleep(delay)
        finally:
            self._waiting -= 1
        return True
