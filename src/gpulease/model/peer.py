"""The process at the other end of a connection, as the kernel reports it. Not here: the connection itself
(broker/edge/connection.py).
"""

from __future__ import annotations


class Account:
    """What the directory of users says of one; kept up to date by the edge (broker/edge/accounts.py)."""

    __slots__ = ("exists", "groups", "home", "name")

    def __init__(
        self, name: str, groups: tuple[str, ...] = (), home: str = "/nonexistent", exists: bool = True
    ) -> None:
        self.name, self.groups, self.home, self.exists = name, groups, home, exists


class Peer:
    """Two connections of one process are two peers."""

    __slots__ = ("account", "pid", "uid")

    def __init__(self, pid: int, uid: int, account: Account) -> None:
        self.pid, self.uid, self.account = pid, uid, account

    @property
    def user(self) -> str:
        return self.account.name

    @property
    def groups(self) -> tuple[str, ...]:
        """Of its user, as they are now; quotas are counted by them."""
        return self.account.groups
