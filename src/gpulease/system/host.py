"""What the kernel says of this host: whether a folder is on one of its disks, and how much memory it has."""

from __future__ import annotations

import os
import re

from gpulease.model.values import HostMemory

NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "beegfs", "ceph", "afs", "glusterfs", "pvfs2",
    "orangefs", "coda", "ncpfs", "ocfs2", "gfs2", "virtiofs", "vboxsf", "moosefs", "panfs", "wekafs", "acfs",
}  # fmt: skip
LOCAL_FUSE = {"fuseblk", "fuse.ntfs-3g", "fuse.fuse-overlayfs", "fuse.bindfs", "fuse.ext2", "fuse.gocryptfs"}


def filesystem(path: str, mounts: str) -> str:
    """The type of the file system that `path` is on, by the text of /proc/self/mountinfo; "" when it does not tell."""
    found, longest = "", -1
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
        inside = point == "/" or path == point or path.startswith(f"{point}/")
        if inside and len(point) >= longest:  # the last of several at one point hides those before it
            found, longest = right.split(" ")[0], len(point)
    return found


def is_network(kind: str) -> bool:
    """Whether other hosts may have the same files. What is mounted by a program of some user may be anything."""
    return kind in NETWORK or (kind.startswith("fuse") and kind not in LOCAL_FUSE and kind != "fusectl")


def network_filesystem(folder: str) -> str | None:
    """The type of the network file system that holds `folder`; None for one of this host."""
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            kind = filesystem(os.path.realpath(folder), file.read())
    except OSError:
        return None
    return kind if is_network(kind) else None


def read_memory(path: str = "/proc/meminfo") -> HostMemory:
    wanted: dict[str, int] = {}
    try:
        with open(path) as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    wanted[name] = int(rest.split()[0]) * 1024
                if len(wanted) == 2:
                    break
    except (OSError, ValueError, IndexError):
        return HostMemory()
    return HostMemory(wanted.get("MemTotal"), wanted.get("MemAvailable"))
