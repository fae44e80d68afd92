"""What a broker that serves a whole machine has to do with that machine: its service manager, and who may come in."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulease.broker.config_file import config_path, read_text, read_toml
from gpulease.errors import ConfigError

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
        found = _found(path, bool(environ.get("GPULEASE_CONFIG")))
        jobs = found.get(ROOT_KEY, False)
        if not isinstance(jobs, bool):
            raise ConfigError(f"{ROOT_KEY} in {path} is {jobs!r}.", "Give true or false.")
        return cls(_group_number(found, path), jobs)


def socket_group(path: str) -> str | None:
    """The name of the group in a config file, which need not be there."""
    return _group_name(_found(path, False), path)


def _found(path: str, required: bool) -> dict[str, Any]:
    text = read_text(path, required)
    return {} if text is None else read_toml(text, path)


def _group_name(found: dict[str, Any], path: str) -> str | None:
    name = found.get(GROUP_KEY)
    if name is not None and not (isinstance(name, str) and name):
        raise ConfigError(f"{GROUP_KEY} in {path} is {name!r}.", "Give the name of a group, in quotes.")
    return name


def _group_number(found: dict[str, Any], path: str) -> int | None:
    name = _group_name(found, path)
    if name is None:
        return None
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        step = f"Make it with `groupadd`, or change {GROUP_KEY} in {path}."
        raise ConfigError(f"There is no group {name[:40]!r}.", step) from None


def notify_ready() -> None:
    """Tell systemd that clients may come, if it waits for that. What is started later cannot speak to it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.sendto(b"READY=1", name)
