"""Who is at the other end of a connection, by the kernel's word. Not here: the connection itself (connection.py)."""

from __future__ import annotations

from gpulease import identity


class Peer:
    """Two connections of one process are two peers."""

    __slots__ = ("_groups", "pid", "uid", "user")

    def __init__(self, pid: int, uid: int, user: str, groups: tuple[str, ...] | None = None) -> None:
        self.pid, self.uid, self.user = pid, uid, user
        self._groups = groups

    @property
    def groups(self) -> tuple[str, ...]:
        """Of its user; quotas are counted by them. Read when they are first asked for."""
        if self._groups is None:
            self._groups = identity.group_names(self.uid)
        return self._groups
