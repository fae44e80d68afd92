"""safe-gpu's own lock, held while the broker chooses: its users and ours never take a GPU at the same moment."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat

FOLDER = "/tmp/safe_gpu"
NAME = "gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users"


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

    def give(self) -> None:
        if self.held and self._descriptor is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self.held = False

    def _replaced(self) -> bool:
        """Somebody removed the file: whoever comes next locks another one."""
        assert self._descriptor is not None
        if os.fstat(self._descriptor).st_nlink:
            return False
        os.close(self._descriptor)
        self._descriptor = None
        return True

    def _open(self) -> int | None:
        """Open to everyone, unlike safe-gpu's own under a usual umask; never through a symbolic link."""
        before = os.umask(0)
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._folder, 0o777)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(os.path.join(self._folder, NAME), flags, 0o666)
        except OSError:
            return None
        finally:
            os.umask(before)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor
