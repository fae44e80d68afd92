"""What the core may ask of this machine, as its protocol `World` says: processes, users, and the host's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from gpulease.broker.core import instructions
from gpulease.broker.edge.accounts import Accounts
from gpulease.broker.edge.clock import Clock
from gpulease.errors import BrokerUnavailable
from gpulease.model.values import HostMemory
from gpulease.system import identity, places
from gpulease.system.host import read_memory

KEPT = 0.2  # seconds that a reading serves


class CachedMemory:
    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._last = HostMemory()

    def now(self, now: float) -> HostMemory:
        if not self._read_at <= now < self._read_at + KEPT:
            self._read_at, self._last = now, read_memory()
        return self._last


@contextlib.contextmanager
def _looking_at(pid: int) -> Iterator[None]:
    try:
        yield
    except OSError as trouble:
        what = f"The broker cannot look at process {pid} now: {trouble.strerror}."
        raise BrokerUnavailable(what, "Try again in a moment.") from None


class Host:
    """What the core may ask of this machine."""

    def __init__(
        self,
        clock: Clock,
        place: places.Place,
        at_once: Callable[[instructions.Check | instructions.TakeSample], None],
        accounts: Accounts,
    ) -> None:
        self._clock, self._place, self.at_once, self._home_of = clock, place, at_once, accounts.home_of
        self.groups_of, self.uid_of, self.has_group = accounts.groups_of, accounts.uid_of, accounts.has_group
        self._memory = CachedMemory()
        self._folders: dict[int, str] = {}

    def identify(self, pid: int, named: int | None) -> tuple[int | None, int | None, int | None]:
        with _looking_at(pid if named is None else named):
            found = pid if named is None else identity.outer_pid(pid, named)
            if not found:
                return None, None, None
            return found, identity.start_time(found), identity.user_of(found)

    def above(self, pid: int) -> list[int]:
        with _looking_at(pid):
            return identity.above(pid)

    def requesting_process(self, pid: int) -> int:
        with _looking_at(pid):
            return identity.requesting_process(pid, read_words=False)

    def is_gone(self, pid: int, start_time: int | None) -> bool:
        with _looking_at(pid):
            return identity.is_gone(pid, start_time)

    def job_folder(self, uid: int) -> str:
        """Of a system broker: in the home, which is the user's own and not the broker's to fill."""
        if self._place.kind != "system":
            return f"{self._place.state}/jobs/{uid}"
        home = self._home_of(uid)
        if home is not None and uid not in self._folders:
            self._folders[uid] = places.system_jobs(home, self._place)
        return self._folders.get(uid) or places.system_jobs("/nonexistent", self._place)

    def host_memory(self) -> HostMemory:
        return self._memory.now(self._clock.now())
