"""The edge's side of other tools that hand out the same GPUs: what is done with them before a grant and after it.

A check takes these steps, one check at a time, and the broker's loop waits for none of them:

1. each tool that keeps accounts of GPUs (a `Neighbour`, as gpuget) is asked for the devices;
2. safe-gpu's lock is taken, or the check is refused while somebody else holds it;
3. the sampler looks at the devices;
4. where safe-gpu is about, a placeholder shows each device as taken (placeholding.py);
5. `Checked` tells the core what was seen, and which devices a neighbour holds.

The lock is given back at `Unlock`. What is neither kept for a lease nor being checked is given back then too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

from gpulease.broker import events as happened
from gpulease.broker.events import NOBODY, Event, Occupancy
from gpulease.broker.instructions import Check, Keep, Unlock
from gpulease.broker.safe_gpu_lock import SafeGpuLock
from gpulease.broker.sampling import Sampling
from gpulease.model import Device
from gpulease.stores.base import Document


class Neighbour(Protocol):
    """A tool that keeps its own account of GPUs and is asked for them, in a child process of the broker.

    It is made with a function `answered(number, held)`, to be called once for each claim within the neighbour's own
    deadline, and a function `changed()`, to be called when `held` or `shown` has changed.
    """

    name: str
    held: Mapping[str, str]  # devices that it does not let us have, and who has them; what cannot be known counts
    shown: Document  # for `status` and `doctor`; `trouble` says what is wrong, or is None

    @property
    def due(self) -> float | None:
        """When `overdue` is to be called, on the monotonic clock."""

    def owns(self, descriptor: int) -> bool:
        """Whether this descriptor, which it registered with the broker's epoll, is one of its own."""

    def ready(self, descriptor: int, flags: int) -> None: ...

    def overdue(self, now: float) -> None: ...

    def see(self, devices: tuple[Device, ...]) -> None:
        """All devices, at the first sample and whenever other ones are here."""

    def claim(self, number: int, devices: tuple[str, ...]) -> None:
        """Take these for us. Those that it does not let us have are named in `answered`."""

    def keep(self, told: Keep, claimed: frozenset[str]) -> None:
        """Give back what is neither in `told.held` nor `claimed`; claim again what is held and not ours."""

    def close(self) -> None: ...


class Claim:
    """One check, on its way through the steps."""

    __slots__ = ("asked", "check", "held", "number")

    def __init__(self, number: int, check: Check) -> None:
        self.number, self.check = number, check
        self.held: dict[str, str] = {}  # by a neighbour
        self.asked = False  # the sampler looks at the devices

    @property
    def devices(self) -> tuple[str, ...]:
        """Those that a neighbour lets us have."""
        return tuple(uuid for uuid in self.check.devices if uuid not in self.held)


class Neighbours:
    def __init__(
        self, sampling: Sampling, lock: SafeGpuLock, emit: Callable[[Event], None], log: Callable[[str], None]
    ) -> None:
        self._sampling, self._lock, self._emit, self._log = sampling, lock, emit, log
        self._accounts: list[Neighbour] = []  # asked one after the other
        self._kept = Keep()
        self._claims: list[Claim] = []  # the first is under way, if `_under_way`
        self._under_way = False
        self._undecided: set[str] = set()  # devices of which the core was told, and has not said what becomes of them
        self._number = 0
        self._devices: tuple[Device, ...] = ()
        self._unsettled = False

    # ---------------------------------------------------------------- the neighbours

    def add(self, neighbour: Neighbour) -> None:
        self._accounts.append(neighbour)
        neighbour.see(self._devices)
        self._unsettled = True

    def see(self, devices: tuple[Device, ...]) -> None:
        """The devices of a sample."""
        if [one.uuid for one in devices] != [one.uuid for one in self._devices]:
            self._devices = devices
            for neighbour in self._accounts:
                neighbour.see(devices)

    def changed(self) -> None:
        """Tell the core what is known of all of them."""
        held = {uuid: who for one in self._accounts for uuid, who in one.held.items()}
        shown = {one.name: one.shown for one in self._accounts}
        self._emit(happened.NeighboursChanged(held, NOBODY, frozenset(), shown))

    @property
    def due(self) -> float | None:
        return min((one.due for one in self._accounts if one.due is not None), default=None)

    def overdue(self, now: float) -> None:
        for one in self._accounts:
            if one.due is not None and one.due <= now:
                one.overdue(now)

    def owns(self, descriptor: int) -> bool:
        return any(one.owns(descriptor) for one in self._accounts)

    def ready(self, descriptor: int, flags: int) -> None:
        for one in self._accounts:
            if one.owns(descriptor):
                return one.ready(descriptor, flags)
        return None

    def close(self) -> None:
        for one in self._accounts:
            one.close()

    # ---------------------------------------------------------------- what the core says

    def check(self, one: Check) -> None:
        """At once where nobody keeps accounts; else after the turn, so that what ended in it is given back first."""
        self._number += 1
        self._claims.append(Claim(self._number, one))
        if self._accounts:
            self._unsettled = True
        else:
            self._begin()

    def keep(self, one: Keep) -> None:
        self._kept = one
        self._unsettled = True

    def unlock(self, one: Unlock) -> None:
        if not self._claims:
            self._lock.give()
            self._undecided.clear()
            self._unsettled = True

    def settle(self) -> None:
        """After each turn: what is nobody's any more is given back, and what was asked for begins."""
        if self._unsettled:
            self._unsettled = False
            claimed = self._undecided.union(*(one.check.devices for one in self._claims[: self._under_way]))
            for neighbour in self._accounts:
                neighbour.keep(self._kept, frozenset(claimed))
            self._begin()

    # ---------------------------------------------------------------- the steps of a check

    def _begin(self) -> None:
        if self._claims and not self._under_way:
            self._under_way = True
            self._ask(0)

    def _ask(self, place: int) -> None:
        """One neighbour after the other; then the lock."""
        claim = self._claims[0]
        if place < len(self._accounts) and claim.devices:
            self._accounts[place].claim(claim.number, claim.devices)
        else:
            self._look()

    def answered(self, neighbour: Neighbour, number: int, held: Mapping[str, str]) -> None:
        claim = self._claims[0] if self._claims else None
        if claim is None or claim.number != number or claim.asked:
            return  # the driver failed meanwhile, and the check with it
        claim.held.update(held)
        self._ask(self._accounts.index(neighbour) + 1)

    def _look(self) -> None:
        claim, now = self._claims[0], time.monotonic()
        if not claim.devices:
            return self._done({})
        if not self._lock.take() and (holder := self._lock.holder()).user not in claim.check.passed_by:
            why = f"{holder} is choosing GPUs with safe-gpu right now."
            return self._refuse(why, passing=True, user=holder.user, pid=holder.pid)
        if not self._sampling.may_ask(now):
            return self._refuse("The GPU driver does not answer.")
        claim.asked = True
        return self._sampling.ask("check " + " ".join(claim.devices), now)

    def checked(self, seen: Mapping[str, Occupancy]) -> None:
        """The sampler's answer."""
        self._done(seen)

    def _done(self, seen: Mapping[str, Occupancy]) -> None:
        claim = self._next()
        self._undecided.update(claim.devices)
        self._emit(happened.Checked(claim.check.revision, seen, claim.held))

    def _refuse(self, why: str, passing: bool = False, user: str = "", pid: int | None = None) -> None:
        claim = self._next()
        if not self._undecided:
            self._lock.give()
        self._emit(happened.CheckRefused(claim.check.revision, why, passing, user, pid))

    def _next(self) -> Claim:
        self._under_way, self._unsettled = False, True
        return self._claims.pop(0)

    def failed(self) -> None:
        """The driver did not answer: every check failed with it, as the core is told."""
        self._claims.clear()
        self._under_way, self._unsettled = False, True
