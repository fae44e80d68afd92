"""safe-gpu's own lock, held while the broker chooses: its users and ours never take a GPU at the same moment.

Safe-gpu makes the lock's file at its first use and leaves it there. The holder of the lock shows whether safe-gpu is
used here. A broker makes the file only if it knows that safe-gpu is used, and marks it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gpulease.system import identity

FOLDER = "/tmp/safe_gpu"
NAME = "gpu-lock-magic-RaNdOM-This_Name-NEED_BE-THE_SAME-Across_Users"

FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, pid


FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
NOT_PLAIN = "it is not a regular file"
MARK = b"gpulease\n"  # in a file that a broker made; safe-gpu writes nothing


class Holder(NamedTuple):
    pid: int | None = None
    user: str = ""

    def __str__(self) -> str:
        return "Somebody" if self.pid is None else f"Process {self.pid}{f' of {self.user}' * bool(self.user)}"


class SafeGpuLock:
    """Best effort: what is there and cannot be locked keeps nobody from a GPU, and `trouble` says so."""

    def __init__(self, folder: str = FOLDER, name_of: Callable[[int], str] = identity.account_name) -> None:
        """`name_of` a user with an account: of uids without one a user may have thousands, and they count as one."""
        self._folder, self._name_of = folder, name_of
        self.trouble: str | None = None  # why the lock could not be had at the last try, if anything is there
        self._descriptor: int | None = None
        self.held, self.since = False, 0.0  # by the broker, and since when on the monotonic clock
        self._waker = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None

    def user(self) -> Holder | None:
        """The process that holds the lock now and is not a broker: a user of safe-gpu. Anybody can make the file."""
        if self.held or not self._opened(make=False):
            return None
        holder = self.holder()
        return None if holder.pid is None or _is_broker(holder.pid) else holder

    def take(self, make: bool = True) -> bool:
        """True when the lock is held now, or there is none to hold; False while a safe-gpu user chooses."""
        if self.held:
            return True
        if not self._opened(make):
            return True
        assert self._descriptor is not None
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            self.trouble = _cannot_be_locked(self._path, os.strerror(error.errno or 0))
            return True
        self.held, self.since, self.trouble = True, time.monotonic(), None
        return True

    def examine(self) -> None:
        """Find out whether the lock is available, and have `trouble` say so."""
        if not self.held:
            self._opened(make=False)

    @property
    def _path(self) -> str:
        return os.path.join(self._folder, NAME)

    @property
    def waker(self) -> int:
        """A descriptor that can be read when a lock that was waited for has been had."""
        return self._waker

    def wait(self) -> None:
        """Stand in the kernel's own line for it, in a thread, as safe-gpu's users do: who only tries now and then may
        never find it free. When the waker says so, `take` finds it held by this process, or `give` lets it go.
        """
        if self._descriptor is not None and (self._thread is None or not self._thread.is_alive()):
            thread = threading.Thread(target=self._stand_in_line, args=(self._descriptor,), daemon=True)
            with contextlib.suppress(RuntimeError):  # no more processes: the lock is tried again by the clock
                thread.start()
                self._thread = thread

    def _stand_in_line(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        os.eventfd_write(self._waker, 1)

    def woken(self) -> None:
        """The thread may have had it, or failed, or waited for a file that was replaced since: trying it tells."""
        os.eventfd_read(self._waker)
        self.take(make=False)

    def holder(self) -> Holder:
        """The holder of the lock, as far as the kernel says: not of an open file's lock, nor of another container."""
        if self._descriptor is None:
            return Holder()
        asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        try:
            lock = struct.unpack(FLOCK, fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
            pid = lock[4] if lock[0] != fcntl.F_UNLCK and lock[4] > 0 else None
            uid = None if pid is None else identity.user_of(pid)
        except OSError:
            return Holder()
        return Holder(pid, "" if uid is None else self._name_of(uid))

    def give(self) -> None:
        if self.held and self._descriptor is not None:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)
        self.held = False

    def _opened(self, make: bool) -> bool:
        if self._descriptor is None or self._replaced():
            self._descriptor = self._open(make)
        return self._descriptor is not None

    def _replaced(self) -> bool:
        """The file was removed or moved: the next process locks another one."""
        assert self._descriptor is not None
        ours = os.fstat(self._descriptor)
        try:
            there = os.lstat(self._path)
        except OSError:
            there = None
        if there is not None and (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            return False
        os.close(self._descriptor)
        self._descriptor = None
        return True

    def _open(self, make: bool) -> int | None:
        """Open to everyone, unlike safe-gpu's own under a usual umask; never through a symbolic link."""
        before = os.umask(0)
        folder = None
        self.trouble = None
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self._folder, 0o1777)  # sticky: nobody puts a link in the place of our file
            folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            # Nothing is made in a folder of a stranger's; what is there may be locked.
            if make and os.fstat(folder).st_uid in (0, os.geteuid()):
                _make(folder)
            descriptor = os.open(NAME, FLAGS, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.trouble = _obstacle(self._folder if folder is None else self._path, error)
            return None
        finally:
            os.umask(before)
            if folder is not None:
                os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            self.trouble = _cannot_be_locked(self._path, NOT_PLAIN)
            return None
        return descriptor


def _obstacle(path: str, error: OSError) -> str:
    """By what is there: a link causes one of several errors."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        path, mode = os.path.dirname(path), 0  # the folder is closed
    if stat.S_ISLNK(mode):
        return _cannot_be_locked(path, "it is a symbolic link")
    if isinstance(error, PermissionError):
        return _cannot_be_locked(path, "it is closed to the broker's user")
    kinds = {errno.ENOTDIR: "it is not a folder", errno.EISDIR: NOT_PLAIN, errno.ENXIO: NOT_PLAIN}
    return _cannot_be_locked(path, kinds.get(error.errno or 0, os.strerror(error.errno or 0)))


def _cannot_be_locked(path: str, why: str) -> str:
    return (
        f"Safe-gpu's lock cannot be taken, so that its users may choose a GPU at the same moment: {path}: {why}. "
        f"Have its owner or root remove it, or run `gpulease set neighbours.safe-gpu off` if nobody uses safe-gpu."
    )


def _make(folder: int) -> None:
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(NAME, FLAGS | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
        os.write(descriptor, MARK)
        os.close(descriptor)


def _is_broker(pid: int) -> bool:
    """By its name: who claims to be one is only not taken for a user of safe-gpu."""
    try:
        return identity.process_name(pid) in (identity.BROKER_NAME, "")
    except OSError:
        return True  # nothing can be said of it
