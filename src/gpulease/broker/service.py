"""What a broker that serves a whole machine has to do with that machine: its service manager, and who may come in."""

from __future__ import annotations

import contextlib
import os
import socket

from gpulease.errors import UsageError

CONFIG = "/etc/gpulease/config.toml"
GROUP_KEY = "socket-group"


def notify_ready() -> None:
    """Tell systemd that clients may come, if it waits for that. What is started later cannot speak to it."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.sendto(b"READY=1", name)


def socket_group(path: str = CONFIG) -> int | None:
    """The number of the group whose members alone may use the socket; None: everybody may."""
    name = socket_group_name(path)
    if name is None:
        return None
    import grp

    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        step = f"Make it with `groupadd`, or change {GROUP_KEY} in {path}."
        raise UsageError(f"There is no group {name[:40]!r}.", step) from None


def socket_group_name(path: str) -> str | None:
    import tomllib

    try:
        with open(path, "rb") as file:
            name = tomllib.load(file).get(GROUP_KEY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as wrong:
        raise UsageError(f"{path} cannot be read: {wrong}.", "Correct it.") from None
    if name is not None and not (isinstance(name, str) and name):
        raise UsageError(f"{GROUP_KEY} in {path} is {name!r}.", "Give the name of a group, in quotes.")
    return name
