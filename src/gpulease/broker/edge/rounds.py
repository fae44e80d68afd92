"""Whose turn it is: messages are taken by user and by the time that they cost, however many connections send them.

Each user has an account of the time that was spent for it. Whoever has used least is next, so that somebody who asks
now and then waits for one message of the others at most. Not here: sockets (clients.py), and what a message means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

from gpulease.broker.core.events import Received
from gpulease.broker.edge.connection import Connection

ROUND = 0.005  # seconds of one round; what was decided in it is committed then, and its answers leave
LOOKS = 16  # requests of one user that only look, in one round: those that act come first
MOST_LONG = 4  # long requests of one user that are under way at a time


class TimeAccount:
    """What is ready of one user, and what it has cost."""

    __slots__ = ("acts", "long", "looks", "piece", "used")

    def __init__(self) -> None:
        self.used = 0.0  # seconds
        self.acts: dict[Connection, None] = {}
        self.looks: dict[Connection, None] = {}
        self.long: set[Connection] = set()  # whose request is being done in pieces
        self.piece = False  # such a piece was what was done last

    def __bool__(self) -> bool:
        return bool(self.acts or self.looks)

    def next(self, looks: int) -> Connection | None:
        """Those that act first, each in its turn; while too many long requests are under way, those.

        Between two pieces one that looks may pass: it would wait for all of them, which may be half a minute.
        """
        if len(self.long) >= MOST_LONG:
            return next((one for one in self.acts if one in self.long), None)
        act = next(iter(self.acts), None)
        if act is not None and not (self.piece and act in self.long):
            return act
        return next(iter(self.looks)) if self.looks and looks < LOOKS else act


class Turns:
    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._accounts: dict[int, TimeAccount] = {}
        self._least = 0.0  # used by whoever was served last, before it was: somebody who comes now begins here

    def __bool__(self) -> bool:
        return any(self._accounts.values())

    def has(self, uid: int) -> bool:
        """Whether something of this user is to be handled."""
        return bool(self._accounts.get(uid))

    def add(self, connection: Connection) -> None:
        """It has a whole message, or one to be taken up again: behind its user's others."""
        account = self._accounts.get(connection.peer.uid)
        if account is None:
            account = self._accounts[connection.peer.uid] = TimeAccount()
        if not account:
            account.used = max(account.used, self._least)
        (account.looks if connection.looks else account.acts)[connection] = None
        if connection.resumed is not None:
            account.long.add(connection)

    def drop(self, connection: Connection) -> None:
        """Nothing of it is to be done, or under way, any more."""
        account = self._accounts.get(connection.peer.uid)
        if account is not None:
            account.acts.pop(connection, None)
            account.looks.pop(connection, None)
            account.long.discard(connection)

    def round(self, take: Callable[[Connection], Received | None]) -> Iterator[Received]:
        """What is to be handled in one turn of the core, which takes the next when it is done with the last.

        It ends when its time is over; or before a user who has used much more than who was first, since the answers
        to the others leave when it ends.
        """
        began = now = self._clock()
        first: float | None = None
        looks: dict[int, int] = {}
        while now - began < ROUND:
            found = self._next(looks)
            if found is None:
                return
            account, connection = found
            first = account.used if first is None else first
            if account.used - first > ROUND:
                return
            self._least = account.used
            account.piece = connection in account.long
            looks[connection.peer.uid] = looks.get(connection.peer.uid, 0) + connection.looks
            (account.looks if connection in account.looks else account.acts).pop(connection)
            try:
                event = take(connection)
                if event is not None:
                    yield event
            finally:
                before, now = now, self._clock()
                account.used += now - before

    def _next(self, looks: dict[int, int]) -> tuple[TimeAccount, Connection] | None:
        for uid, account in sorted(self._accounts.items(), key=lambda entry: entry[1].used):
            connection = account.next(looks.get(uid, 0))
            if connection is not None:
                return account, connection
            if not (account or account.long) and account.used <= self._least:
                del self._accounts[uid]  # as if it had never come
        return None
