"""Hosts that did not answer lately, so that not every command waits for them again.

A file for each of them, beside the connections that are kept: it has since when, and its time is that of the last
question that had all the time. For a while a host is then given little time; as soon as it answers, it is forgotten.
"""

from __future__ import annotations

import os
import time

from gpulease.hosts import ssh

REMEMBERED = 120.0  # seconds until a host is given all the time again
SHARE = 0.15  # of the usual time, that a host is given meanwhile


def _path(host: str) -> str:
    return os.path.join(ssh.folder(), f"absent.{host}")


def little(patience: float) -> float:
    """Seconds for a host that did not answer lately."""
    return patience * SHARE


def since(host: str, lately: bool = True) -> float | None:
    """From when on it has not answered, by the clock; None of one that did, or that was not asked `lately`."""
    try:
        with open(_path(host)) as file:
            asked = time.time() - os.fstat(file.fileno()).st_mtime
            return None if lately and not 0 <= asked < REMEMBERED else float(file.read(40))
    except (OSError, ValueError):
        return None


def remember(host: str) -> float:
    """It was given all the time, and did not answer; since when that is so."""
    first = since(host, lately=False) or time.time()
    try:
        path = _path(host)
        with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"{first:.0f}\n")
        os.rename(f"{path}.new", path)
    except OSError:
        pass  # then it is waited for again
    return first


def forget(host: str) -> None:
    try:
        os.unlink(_path(host))
    except OSError:
        pass
