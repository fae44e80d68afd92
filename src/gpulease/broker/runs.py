"""PURE: what is known of one run of a job: where its processes begin, and how it ended."""

from __future__ import annotations

import errno
from typing import NamedTuple

UNWRITTEN = 122  # the shell could not even note that it began
UNSTARTABLE = (126, 127)  # what a shell says of a command that cannot be executed, or is not there
NOT_NOTED = "no-note"  # its shell ended before it noted anything, so its command never began
NO_FORK = "no-fork"  # its shell could not start its command, for lack of processes
TROUBLES = (NO_FORK, "no-folder", "no-command")  # that a shell notes
UNSEEN = "unseen"  # neither a process nor a place where a note could be
SUSPECT = (UNWRITTEN, 125, *UNSTARTABLE)  # codes that may be the shell's and not the command's
# What passes by itself, or when somebody makes room: what met it is tried again, and nothing is concluded from it.
SHORTAGES = frozenset(
    {
        errno.ENOSPC, errno.EDQUOT, errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EIO,
        errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip


class RunNote(NamedTuple):
    """What is noted about one run."""

    pid: int | None = None  # of its shell
    code: int | None = None  # of its command, once that ended
    trouble: str | None = None  # why its command never began

    @property
    def over(self) -> bool:
        return self.code is not None or self.trouble is not None


class Root(NamedTuple):
    """Where a run's tree begins: its shell, by pid and start time, and its mark, which is its user's to bear."""

    pid: int
    since: int | None
    token: str
    uid: int

    @property
    def mark(self) -> bytes:
        return f"\0GPULEASE_TOKEN={self.token}\0".encode()
