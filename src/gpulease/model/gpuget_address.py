"""PURE: where gpuget's lists are: `redis://HOST:PORT/DB?prefix=GPU`, and how that is shown without its password."""

from __future__ import annotations

from typing import NamedTuple

from gpulease.errors import UsageError

PREFIX = "GPU"  # gpuget's own default
SCHEMES = ("redis", "rediss", "unix")
FORM = "Give redis://HOST:PORT/DB, rediss:// for TLS, unix:///PATH?db=0, each with ?prefix=GPU if need be; or none."


class Address(NamedTuple):
    text: str  # as it was given
    url: str  # the same, as the client library takes it; it may have a password in it
    prefix: str
    shown: str  # without user, password and options

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no message may show, as written and as it is sent."""
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(self.url)
        found = (parts.password, unquote(parts.password or ""), parts.query)
        return tuple(one for one in found if one)


def read_address(text: str) -> Address:
    """Refused without repeating the text: there may be a password in it."""
    from urllib.parse import parse_qsl, urlencode, urlsplit

    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        options = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise UsageError("The address of gpuget's Redis cannot be read.", FORM) from None
    number = parts.path.strip("/")
    known = host is not None and (number == "" or number.isdecimal())
    if parts.scheme not in SCHEMES or not (bool(number) if parts.scheme == "unix" else known) or " " in text:
        raise UsageError("The address of gpuget's Redis has another form.", FORM)
    prefix = dict(options).get("prefix", PREFIX)
    others = urlencode([one for one in options if one[0] != "prefix"])
    place = parts.path if parts.scheme == "unix" else f"{host}:{port or 6379}/{number or 0}"
    url = f"{parts.scheme}://{parts.netloc}{parts.path}{'?' * bool(others)}{others}"
    return Address(text, url, prefix or PREFIX, f"{parts.scheme}://{place}")
