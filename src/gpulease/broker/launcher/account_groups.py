"""The groups that a user's jobs would get, for the launcher: looked up in a child, since a directory may hang."""

from __future__ import annotations

import grp
import json
import os
import pwd
import select
import signal
import time
from typing import NoReturn

PATIENCE = 2.0  # seconds for an answer
PAUSE = 30.0  # seconds before a directory that did not answer is asked again
FRESH = 10.0  # seconds that an answer serves


class AccountGroups:
    def __init__(self) -> None:
        self._known: dict[int, tuple[float, dict[int, str]]] = {}
        self._silent = 0.0  # until when nobody is asked

    def missing(self, uid: int, has: set[int]) -> str | None:
        """Why a process that is in these groups gets no jobs: those would be in more."""
        now = time.monotonic()
        known = self._known.get(uid)
        if known is None or now - known[0] > FRESH:
            groups = self._ask(uid) if now >= self._silent else None
            if groups is None:
                return "The directory of users does not answer, so that nobody knows which groups its jobs would get."
            known = self._known[uid] = (now, groups)
        lacks = [name for gid, name in known[1].items() if gid not in has]
        if not lacks:
            return None
        named = ", ".join(lacks[:5])
        return f"It is not in all groups of its account, as its jobs would be: {named}. A new login has them."

    def _ask(self, uid: int) -> dict[int, str] | None:
        ours, theirs = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # so that it is not reaped before it is held
        try:
            pid = os.fork()
            if pid == 0:
                _tell(theirs, uid)
            child = os.pidfd_open(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.close(theirs)
        try:
            data = _read(ours, time.monotonic() + PATIENCE)
            if data is not None:
                return {int(gid): name for gid, name in json.loads(data)}
            signal.pidfd_send_signal(child, signal.SIGKILL)
        except (ValueError, ProcessLookupError):
            pass  # it failed
        finally:
            os.close(ours)
            os.close(child)
        self._silent = time.monotonic() + PAUSE
        return None


def _tell(way: int, uid: int) -> NoReturn:
    try:
        os.write(way, json.dumps(look_up(uid)).encode())
    finally:
        os._exit(0)


def _read(way: int, until: float) -> bytes | None:
    """All of it; None when it does not end in time."""
    data = b""
    while select.select([way], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(way, 1 << 16)
        if not part:
            return data
        data += part
    return None


def look_up(uid: int) -> list[tuple[int, str]]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return []  # nothing is run for it
    return [(gid, _name(gid)) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid)]


def _name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
