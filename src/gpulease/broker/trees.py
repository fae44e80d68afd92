"""All processes of a job: its session, their descendants, and every process with its mark, however detached.

What escapes: a process that has left the session, lost its parent, and thrown away its environment or become another
user.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from gpulease.broker.core.events import Root
from gpulease.system import identity

ENVIRON = 1 << 17  # bytes of an environment that are searched; the mark stands at its beginning


class Census:
    """Every process at one moment, read once for any number of jobs."""

    def __init__(self) -> None:
        self._processes: dict[int, identity.ProcessStat] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal() and (seen := identity.family(int(name))) is not None and seen.state not in "ZX":
                self._processes[int(name)] = seen
        for pid in (os.getpid(), os.getppid()):  # agent and broker are nobody's job, whoever started them
            self._processes.pop(pid, None)
        self._environs: dict[int, bytes] = {}

    def tree(self, root: Root) -> dict[int, int]:
        """The living ones, with their start times. A process that began before the job is not part of it."""
        born = {
            pid: seen for pid, seen in self._processes.items() if root.since is None or seen.start_time >= root.since
        }
        session = root.pid if self._is_leader(root) else None
        found = {
            pid
            for pid, seen in born.items()
            if (seen.session == session and _may_be(pid, root)) or self._carries(pid, root)
        }
        return {pid: born[pid].start_time for pid in _with_children(found, born) if _may_be(pid, root)}

    def _is_leader(self, root: Root) -> bool:
        """Whether the session is the job's: its pid is not given again while anybody of the session lives."""
        if root.pid <= 1:
            return False  # not known; and nearly every process of a host descends from those two sessions
        leader = self._processes.get(root.pid)
        if leader is None or leader.start_time == root.since:
            return True
        return root.since is None and self._carries(root.pid, root)

    def find(self, root: Root) -> int | None:
        """The shell of a job that was started by a broker that is gone, by its mark."""
        for pid, seen in self._processes.items():
            if seen.session == pid and self._carries(pid, root):
                return pid
        return None

    def is_shell(self, pid: int, root: Root) -> bool:
        return pid in self._processes and self._carries(pid, root)

    def _carries(self, pid: int, root: Root) -> bool:
        """The variable itself, in a process of the job's user: anybody can write another's mark anywhere."""
        if identity.user_of(pid) != root.uid:
            return False  # nor is another user's looked at: reading it may be made to last for ever
        if pid not in self._environs:
            self._environs[pid] = b"\0" + _environ(pid) + b"\0"
        return root.mark in self._environs[pid]


def _may_be(pid: int, root: Root) -> bool:
    """A user's journal and marks are the user's own word, so they lead to the user's own processes only."""
    return root.uid == 0 or identity.user_of(pid) == root.uid


def _with_children(found: set[int], born: dict[int, identity.ProcessStat]) -> set[int]:
    grown = True
    while grown:
        children = {pid for pid, seen in born.items() if seen.parent in found and pid not in found}
        found |= children
        grown = bool(children)
    return found


def _environ(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read(ENVIRON)
    except identity.UNSEEN:
        return b""


def send(processes: Mapping[int, int], number: int) -> None:
    """Signal each process whose start time still matches. Never signal pid 1 or ourselves."""
    for pid, start_time in processes.items():
        descriptor = identity.pidfd(pid) if pid > 1 and pid != os.getpid() else None
        if descriptor is None:
            continue
        try:
            if identity.start_time(pid) == start_time:
                signal.pidfd_send_signal(descriptor, number)
        except (ProcessLookupError, PermissionError):
            continue
        finally:
            os.close(descriptor)
