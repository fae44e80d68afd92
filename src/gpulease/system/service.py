"""What a broker that serves a whole machine has to do with that machine: its service manager, and who may come in."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping, MutableMapping
from typing import NamedTuple

from gpulease.errors import ConfigError
from gpulease.system.config_file import line_of, read_text, read_toml, wrong_line
from gpulease.system.places import config_path

GROUP_KEY, ROOT_KEY = LAUNCHER_KEYS = ("socket-group", "root-jobs")


class LauncherConfig(NamedTuple):
    """The part of the config file that the launcher obeys. It is read when it starts."""

    group: int | None = None  # whose members alone may use the socket; None: everybody may
    root_jobs: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> LauncherConfig:
        path = config_path("system", environ)
        if path is None:
            return cls()
        text = read_text(path, bool(environ.get("GPULEASE_CONFIG"))) or ""
        jobs = read_toml(text, path).get(ROOT_KEY, False)
        if not isinstance(jobs, bool):
            raise _wrong(text, path, ROOT_KEY, f"{ROOT_KEY} is {jobs!r}.", "Give true or false.")
        return cls(_group_number(text, path), jobs)


def socket_group(path: str) -> str | None:
    """The name of the group in a config file, which need not be there."""
    return _group_name(read_text(path, False) or "", path)


def _wrong(text: str, path: str, key: str, what: str, next_step: str) -> ConfigError:
    return wrong_line(path, line_of(text, (key,)), what, next_step)


def _group_name(text: str, path: str) -> str | None:
    name = read_toml(text, path).get(GROUP_KEY)
    if name is not None and not (isinstance(name, str) and name):
        raise _wrong(text, path, GROUP_KEY, f"{GROUP_KEY} is {name!r}.", "Give the name of a group, in quotes.")
    return name


def _group_number(text: str, path: str) -> int | None:
    name = _group_name(text, path)
    if name is None:
        return None
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        step = f"Make it with `groupadd`, or change {GROUP_KEY}."
        raise _wrong(text, path, GROUP_KEY, f"There is no group {name[:40]!r}.", step) from None


class Manager:
    """systemd, if it waits to hear that this service is ready and goes on. What is started later cannot tell it so."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        wanted, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        meant = wanted.isdecimal() and pid in ("", str(os.getpid()))
        self.patience = int(wanted) / 1e6 if meant else None  # seconds without a sign of life

    def ready(self) -> None:
        self._tell(b"READY=1")

    def alive(self) -> None:
        self._tell(b"WATCHDOG=1")

    def _tell(self, word: bytes) -> None:
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
                way.setblocking(False)
                way.sendto(word, self._address)


class SignsOfLife:
    """Of the broker's loop: a few in the time after which the service manager takes it to be stuck."""

    def __init__(self, patience: float | None, tell: Callable[[], None]) -> None:
        self._every = None if patience is None else patience / 4
        self._tell = tell
        self.due: float | None = None if patience is None else float("-inf")

    def give(self, now: float) -> None:
        if self._every is not None and self.due is not None and self.due <= now:
            self.due = now + self._every
            self._tell()
