"""Where named pools live: a socket and a log for each, in a folder of the user's own."""

from __future__ import annotations

import os
import re
import socket

from gpulease import places
from gpulease.errors import NotFound, NotPermitted, UsageError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,40}")
LONGEST_SOCKET = 104  # sun_path holds 108 bytes


def check_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:60]!r} is no name for a pool.", "Use up to 41 letters, digits, dots, dashes and underscores."
        )
    return name


def folder() -> str:
    return os.path.join(places.own(os.environ), "pools")


def prepare_folder() -> str:
    made = folder()
    places.prepare(os.path.dirname(made), everyone=False)
    places.prepare(made, everyone=False)
    return made


def socket_path(name: str) -> str:
    path = os.path.join(folder(), f"{check_name(name)}.socket")
    if len(os.fsencode(path)) > LONGEST_SOCKET:
        raise UsageError(f"The path {path!r} is too long for a socket.", "Set GPULEASE_DIR to a shorter one.")
    return path


def log_path(name: str) -> str:
    return os.path.join(folder(), f"{check_name(name)}.log")


def names() -> list[str]:
    """Of the pools that have a socket, whether anybody still listens there or not."""
    try:
        return sorted(entry.removesuffix(".socket") for entry in os.listdir(folder()) if entry.endswith(".socket"))
    except FileNotFoundError:
        return []


def connect(name: str) -> socket.socket:
    """A connection with the pool's process, which is this user's for certain: pickles will come from it."""
    from gpulease.broker.connection import peer

    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(socket_path(name))
    except OSError:
        connected.close()
        raise NotFound(
            f"There is no pool {name!r}.",
            f"Start it: gpulease pool start {name} --gpus N; `gpulease pool ls` lists them.",
        ) from None
    if peer(connected)[1] != os.geteuid():
        connected.close()
        raise NotPermitted(f"The pool {name!r} belongs to another user.", "Start one of your own.")
    return connected
