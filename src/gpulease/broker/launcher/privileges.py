"""Privileges, for the launcher: capabilities, keyrings, what the kernel says of a process, and the groups of a user."""

from __future__ import annotations

import ctypes
import errno
import grp
import json
import os
import platform
import pwd
import select
import signal
import socket
import time
from typing import NoReturn

CAPABILITIES = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_RESOURCE": 24,
    "AUDIT_WRITE": 29,
}  # fmt: skip
CAPABILITY_VERSION = 0x20080522
KEYCTL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271}  # the number of the system call
JOIN_SESSION_KEYRING = 1
NAMESPACES = ("root", "ns/mnt", "ns/pid", "ns/user", "ns/net", "ns/ipc")  # below /proc/PID
SO_PEERPIDFD = 77


def status(pid: int) -> dict[str, str]:
    """/proc/PID/status, which everybody may read."""
    with open(f"/proc/{pid}/status") as file:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in file)}


def peer_ended(connected: socket.socket) -> bool:
    """Whether the process that connected is gone. Linux before 6.5 does not tell."""
    try:
        descriptor = connected.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError as trouble:
        return trouble.errno != errno.ENOPROTOOPT
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    finally:
        os.close(descriptor)


def keep_capabilities(*names: str) -> None:
    """Of this process; what it starts as another user has none anyway."""
    mask = sum(1 << CAPABILITIES[name] for name in names)
    mask &= int(status(os.getpid())["CapPrm"], 16)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)  # effective, permitted, inheritable, twice
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capset(header, data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def join_new_keyring() -> None:
    """A session keyring of its own, instead of that of the process that started this."""
    number = KEYCTL.get(platform.machine())
    if number is not None:  # a kernel without keyrings has none that could leak
        ctypes.CDLL(None).syscall(number, JOIN_SESSION_KEYRING, None)


def leaves_sandbox(pid: int, uid: int, gid: int) -> str | None:
    """Why a job of this process would be freer than the process itself; None where it would not."""
    theirs, ours = status(pid), status(os.getpid())
    if int(theirs["NoNewPrivs"]) > int(ours["NoNewPrivs"]) or int(theirs["Seccomp"]) > int(ours["Seccomp"]):
        return "It comes from a sandbox (no_new_privs or seccomp), which its jobs would leave."
    held = "CapEff" if uid == 0 else "CapBnd"
    if int(ours["CapBnd"], 16) & ~int(theirs[held], 16):
        return "It has fewer capabilities than its jobs would have."
    try:
        os.setegid(gid)
        os.seteuid(uid)  # what it may see of itself
        inside = [os.readlink(f"/proc/{pid}/{name}") for name in NAMESPACES]
    except OSError:
        return "The namespaces that it runs in cannot be read."
    finally:
        os.seteuid(0)
        os.setegid(0)
    if inside != [os.readlink(f"/proc/self/{name}") for name in NAMESPACES]:
        return "It comes from a container, a chroot or another namespace, which its jobs would leave."
    return None


def groups_of(pid: int) -> set[int]:
    """All that a process is in."""
    theirs = status(pid)
    return {int(one) for name in ("Gid", "Groups") for one in theirs[name].split()}


# -------------------------------------------------------------------- groups


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
                _tell_groups(theirs, uid)
            child = os.pidfd_open(pid)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os.close(theirs)
        try:
            data = _read_all(ours, time.monotonic() + PATIENCE)
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


def _tell_groups(way: int, uid: int) -> NoReturn:
    try:
        os.write(way, json.dumps(groups_of_account(uid)).encode())
    finally:
        os._exit(0)


def _read_all(way: int, until: float) -> bytes | None:
    """All of it; None when it does not end in time."""
    data = b""
    while select.select([way], [], [], max(0.0, until - time.monotonic()))[0]:
        part = os.read(way, 1 << 16)
        if not part:
            return data
        data += part
    return None


def groups_of_account(uid: int) -> list[tuple[int, str]]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return []  # nothing is run for it
    return [(gid, _group_name(gid)) for gid in os.getgrouplist(entry.pw_name, entry.pw_gid)]


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
