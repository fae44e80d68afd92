"""What Python has no function for: capabilities, keyrings, and what the kernel says of a process's privileges."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import select
import socket

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
    """A session keyring of one's own, instead of that of whoever started this."""
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
