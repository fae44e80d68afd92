"""safe-gpu's own lock, held while the broker chooses: its users and ours never take a GPU at the same moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from typing import NamedTuple

from gpulease import identity

FOLDER = "/tmp/safe_gpu"
NAME = "gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users"

FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


class Holder(NamedTuple):
    pid: int | None = None
    user: str = ""

    def __str__(self) -> str:
        return "Somebody" if self.pid is None else f"Process {self.pid}{f' of {self.user}' * bool(self.user)}"


class SafeGpuLock:
    """Best effort where the folder is somebody's and closed to us: then nobody of ours could run safe-gpu either."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._descriptor: int | None = None
        self.held = False

    def take(self) -> bool:
        """True when the lock is held now, or there is none to hold; False while a safe-gpu user chooses."""
        if self.held:
            return True
        if self._descriptor is None or self._replaced():
            self._descriptor = self._open()
        if self._descriptor is None:
            return True
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True
        self.held = True
        return True

    def holder(self) -> Holder:
        """Who holds the lock, as far as the kernel tells: not of an open file's lock, nor of another container."""
        if self._descriptor is None:
            return Holder()
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            told = struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
            pid = told[4] if told[0] != fcntl.F_UNLCK and told[4] > 0 else None
            uid = None if pid is None else identity.user_of(pid)
        except OSError:
            return Holder()
        # Of uids without an account one user may have thousands: they count as one.
        return Holder(pid, identity.user_name(uid) if uid is not None and identity.has_account(uid) else "")

    def give(self) -> None:
        if self.held and self._descriptor is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self.held = False

    def _replaced(self) -> bool:
        """Somebody removed or moved the file: whoever comes next locks another one."""
        assert self._descriptor is not None
        ours = os.fstat(self._descriptor)
        try:
            there = os.lstat(os.path.join(self._folder, NAME))
        except OSError:
            there = None
        if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return False
        os.close(self._descriptor)
        self._descriptor = None
        return True

    def _open(self) -> int | None:
        """Open to everyone, unlike safe-gpu's own under a usual umask; never through a symbolic link."""
        before = os.umask(0)
        folder = None
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, 0o777)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            # Nothing is made in a folder of a stranger's; what is there may be locked.
            make = os.O_CREAT if os.fstat(folder).st_uid in (0, os.geteuid()) else 0
            flags = os.O_RDWR | make | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(NAME, flags, 0o666, dir_fd=folder)
        except OSError:
            return None
        finally:
            os.umask(before)
            if folder is not None:
                os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor
