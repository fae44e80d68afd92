"""Whose turn it is: messages are taken by user and by the time that they cost, however many connections send them.

Each user has an account of the time that was spent for it. The user who has used least is next, so that a user who asks
now and then waits for one message of the others at most. Not here: sockets (clients.py), and what a message means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, thread_time
from typing import Any

from gpulease.broker.core.events import Received
from gpulease.broker.edge.connection import Connection

ROUND = 0.005  # seconds of one round; what was decided in it is committed then, and its answers leave
CROWDED = 0.001  # of one while several users are connected: whoever comes meanwhile waits for its end
REST, LONGEST_REST = 40, 2.0  # times as long as a large message took, and seconds, that its user waits for the next
READS_PER_ROUND = 16  # requests of one user that only look, in one round: those that act come first
MAX_LONG = 4  # long requests of one user that are under way at a time


class TimeAccount:
    """What is ready of one user, and what it has cost."""

    __slots__ = ("acts", "long", "piece", "reads_only", "rests", "used")

    def __init__(self) -> None:
        self.used = 0.0  # seconds
        self.rests = 0.0  # until then nothing of it is handled
        self.acts: dict[Connection, None] = {}
        self.reads_only: dict[Connection, None] = {}
        self.long: set[Connection] = set()  # whose request is being done in pieces
        self.piece = False  # such a piece was what was done last

    def __bool__(self) -> bool:
        return bool(self.acts or self.reads_only)

    def next(self, looks: int) -> Connection | None:
        """Connections with acting messages go first, in turn; while too many long requests are under way, only these.

        Between two pieces one that looks may pass: it would wait for all of them, which may be half a minute.
        """
        if len(self.long) >= MAX_LONG:
            return next((one for one in self.acts if one in self.long), None)
        act = next(iter(self.acts), None)
        if act is not None and not (self.piece and act in self.long):
            return act
        return next(iter(self.reads_only)) if self.reads_only and looks < READS_PER_ROUND else act


class Turns:
    def __init__(self, clock: Callable[[], float] = monotonic, worked: Callable[[], float] = thread_time) -> None:
        """`worked`: the time on the processor. What another program takes of it is nobody's here."""
        self._clock, self._worked = clock, worked
        self._accounts: dict[int, TimeAccount] = {}
        self._least = 0.0  # used by whoever was served last, before it was: somebody who comes now begins here

    @property
    def due(self) -> float | None:
        """When there is something to handle: at once, or when the last user with a message may go on."""
        return min((account.rests for account in self._accounts.values() if account), default=None)

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
        (account.reads_only if connection.reads_only else account.acts)[connection] = None
        if connection.resumed is not None:
            account.long.add(connection)

    def drop(self, connection: Connection) -> None:
        """Nothing of it is to be done, or under way, any more."""
        account = self._accounts.get(connection.peer.uid)
        if account is not None:
            account.acts.pop(connection, None)
            account.reads_only.pop(connection, None)
            account.long.discard(connection)

    def round(
        self, take: Callable[[Connection], Received[Any] | None], crowded: bool = False
    ) -> Iterator[Received[Any]]:
        """What is to be handled in one turn of the core, which takes the next when it is done with the last.

        It ends when its time is over; or before a user who has used much more than who was first, since the answers
        to the others leave when it ends.
        """
        most = CROWDED if crowded else ROUND
        began = now = self._clock()
        if not crowded:
            for account in self._accounts.values():
                account.rests = 0.0
        first: float | None = None
        looks: dict[int, int] = {}
        while now - began < most:
            found = self._next(looks, now)
            if found is None:
                return
            account, connection = found
            first = account.used if first is None else first
            if account.used - first > most:
                return
            self._least = account.used
            account.piece = connection in account.long
            looks[connection.peer.uid] = looks.get(connection.peer.uid, 0) + connection.reads_only
            (account.reads_only if connection in account.reads_only else account.acts).pop(connection)
            worked = self._worked()
            try:
                event = take(connection)
                if event is not None:
                    yield event
            finally:
                before, now = now, self._clock()
                account.used += now - before
                if crowded and (worked := self._worked() - worked) > ROUND:  # others waited for it
                    account.rests = now + min(LONGEST_REST, REST * worked)

    def _next(self, looks: dict[int, int], now: float) -> tuple[TimeAccount, Connection] | None:
        for uid, account in sorted(self._accounts.items(), key=lambda entry: entry[1].used):
            connection = account.next(looks.get(uid, 0)) if account.rests <= now else None
            if connection is not None:
                return account, connection
            if not (account or account.long) and account.used <= self._least and account.rests <= now:
                del self._accounts[uid]  # as if it had never come
        return None
