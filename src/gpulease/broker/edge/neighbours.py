"""The edge's side of other tools that hand out the same GPUs: what is done with them before a grant and after it.

A check takes these steps, one check at a time, and the broker's loop waits for none of them:

1. each tool that keeps accounts of GPUs (a `Neighbour`, as gpuget) is asked for the devices;
2. safe-gpu's lock is taken, or the check is refused while somebody else holds it;
3. the devices are claimed, so that no other broker of this machine grants them (broker/neighbours/claims.py);
4. the sampler looks at the devices;
5. `Checked` tells the core what was seen, and which devices a neighbour or another broker holds;
6. where safe-gpu is used, a placeholder shows each device as taken (broker/neighbours/placeholder.py).

The lock is given back after `Unlock`, once the placeholders are there: a grant does not wait for them, and users of
safe-gpu find them. What the core does not keep and is not being checked is given back at `Unlock` too.
A device of a lease on which no process is to be seen any more goes through steps 2, 4 and 6 again, without the core.
Not here: what is kept and for how long, and whether safe-gpu is used here (broker/core/neighbours.py).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, Protocol

from gpulease.broker.core import events
from gpulease.broker.core.events import Event, Occupancy
from gpulease.broker.core.instructions import Check, Unlock, UpdateNeighbours
from gpulease.broker.edge.sampler import SamplerChild
from gpulease.broker.neighbours.claims import Claims
from gpulease.broker.neighbours.placeholder import Placeholders
from gpulease.broker.neighbours.safe_gpu import SafeGpuLock
from gpulease.errors import in_words
from gpulease.model.store import Document
from gpulease.model.values import Device
from gpulease.system.places import Place

UNUSED = 0.3  # seconds for whoever was refused to come back, once the lock that it was refused for is had
PLACE_AGAIN = 0.25  # seconds between attempts to take the lock for the sake of a leased device
FIND_AGAIN = 60.0  # seconds before the core is told again that the same process holds safe-gpu's lock
MAX_HELD = 1.0  # seconds that the lock is held for checks in a row; then no other begins until it was given back
PAUSE = 0.01  # seconds in which a user of safe-gpu who waits for the lock gets it


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
        """Take these for us. `answered` names the ones that it refuses."""

    def keep(self, update: UpdateNeighbours, claimed: frozenset[str]) -> None:
        """Give back what is neither in `told.held` nor `claimed`; claim again what is held and not ours."""

    def hand_over(self) -> None:
        """Another takes its place: what leases hold or a check is about stays ours."""

    def leave(self) -> None:
        """It is not a neighbour any more: nothing of it stays ours."""

    def close(self) -> None:
        """The broker ends; what leases hold stays ours."""


class Claim:
    """One check, on its way through the steps; or devices of leases that only need a placeholder."""

    __slots__ = ("check", "held", "leased", "number", "step")

    def __init__(self, number: int, check: Check, leased: bool = False) -> None:
        self.number, self.check, self.leased = number, check, leased
        self.held: dict[str, str] = {}  # by a neighbour
        self.step: Literal["waiting", "asking", "looking"] = "waiting"  # asking neighbours; the sampler looks

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that a neighbour gives us."""
        return tuple(uuid for uuid in self.check.devices if uuid not in self.held)


class LockPhase(NamedTuple):
    """Where we stand with others who want safe-gpu's lock.

    quiet: nowhere. awaited: a check was refused, and a thread waits for the lock. offered: we have it, and
    the check may come again until then. yielded: users of safe-gpu go first until then, and no check begins.
    """

    name: Literal["quiet", "awaited", "offered", "yielded"] = "quiet"
    until: float | None = None


class Neighbours:
    def __init__(
        self,
        poll: select.epoll,
        sampling: SamplerChild,
        emit: Callable[[Event], None],
        log: Callable[[str], None],
        gpuget: Callable[[str, Neighbours], Neighbour],
        place: Place,
        machine: str | None,
        lock: SafeGpuLock,
        name_of: Callable[[int], str],
    ) -> None:
        """`machine`: the folder of a simulated one. `name_of`: of a user, without waiting."""
        self._sampling, self._emit, self._log = sampling, emit, log
        self._gpuget = gpuget  # makes that neighbour from its setting
        self._lock = lock
        self._phase = LockPhase()
        poll.register(self._lock.waker, select.EPOLLIN)
        self._placeholders = Placeholders(poll, sampling.seconds, self.changed, log)
        self._user: tuple[int | None, float] = (None, 0.0)  # of safe-gpu's lock, and when the core was told of it
        self._place_again: float | None = None  # when the lock is tried again for the sake of a leased device
        self._accounts: list[Neighbour] = []  # asked one after the other
        self._kept = UpdateNeighbours()
        self._claims: list[Claim] = []  # only the first may be under way
        self._undecided: set[str] = set()  # devices of which the core was told, and has not said what becomes of them
        self._number = 0
        self._devices: tuple[Device, ...] = ()
        self._out_of_date = False
        self._told = self._shown()  # of safe-gpu, to the core
        self._logged: str | None = None  # trouble with safe-gpu's lock
        self._brokers = Claims(poll, place, machine, self.changed, log, name_of)

    # ---------------------------------------------------------------- the neighbours

    def add(self, neighbour: Neighbour) -> None:
        self._accounts.append(neighbour)
        neighbour.keep(self._kept, self._claimed())  # before its first step, which gives back everything else
        neighbour.see(self._devices)
        self._out_of_date = True

    def _remove(self, name: str, replaced: bool) -> None:
        """It gets everything back, unless another follows. A check that may wait for its answer starts again."""
        for neighbour in [one for one in self._accounts if one.name == name]:
            self._accounts.remove(neighbour)
            if replaced:
                neighbour.hand_over()
            else:
                neighbour.leave()
            if self._claims and self._claims[0].step == "asking":
                self._claims[0].step = "waiting"
                self._claims[0].held.clear()
            self.changed()

    def see(self, devices: tuple[Device, ...], then: Callable[[], None]) -> None:
        """The devices of a sample. `then` is called when it is known which of them other brokers have."""
        if [one.uuid for one in devices] != [one.uuid for one in self._devices]:
            self._devices = devices
            self._out_of_date = True
            for neighbour in self._accounts:
                neighbour.see(devices)
        self._brokers.see([one.uuid for one in devices], then)

    def changed(self) -> None:
        """Tell the core what is known of all of them."""
        held = {uuid: who for one in self._accounts for uuid, who in one.held.items()} | self._brokers.held
        if self._lock_trouble != self._logged:
            self._logged = self._lock_trouble
            self._log(self._logged or "safe-gpu's lock can be taken again")
        self._told = self._shown()
        shown = {one.name: one.shown for one in self._accounts}
        shown |= {"safe-gpu": self._told, "gpulease": self._brokers.shown}
        keys = self._placeholders.keys(time.monotonic())
        self._emit(events.NeighboursChanged(held, keys, shown))
        self._out_of_date = True

    def _shown(self) -> Document:
        labels = {one.uuid: one.label for one in self._devices}
        leased = self._undecided.union(self._kept.held, *(one.check.devices for one in self._claims))
        failures = sorted((uuid, why) for uuid, why in self._placeholders.failures.items() if uuid in leased)
        missing = "; ".join(f"{labels.get(uuid, uuid)}: {why}" for uuid, why in failures)
        troubles = [self._lock_trouble, f"no placeholder on GPU {missing}" if failures else None]
        placed = {labels.get(uuid, uuid): pid for uuid, pid in self._placeholders.pids.items()}
        trouble = " And: ".join(filter(None, troubles)) or None
        return {"about": self._mode == "on", "placeholders": placed, "trouble": trouble}

    @property
    def _lock_trouble(self) -> str | None:
        return None if self._mode == "off" else self._lock.trouble

    @property
    def due(self) -> float | None:
        own = (self._placeholders.due, self._place_again, self._phase.until, self._brokers.due)
        dues = (*own, *(one.due for one in self._accounts))
        return min((one for one in dues if one is not None), default=None)

    def overdue(self, now: float) -> None:
        self._placeholders.overdue(now)
        self._brokers.overdue(now)
        if self._place_again is not None and self._place_again <= now:
            self._place_again, self._out_of_date = None, True
        if self._phase.until is not None and self._phase.until <= now:
            self._phase, self._out_of_date = LockPhase(), True
        for one in self._accounts:
            if one.due is not None and one.due <= now:
                one.overdue(now)

    def owns(self, descriptor: int) -> bool:
        own = descriptor == self._lock.waker or self._placeholders.owns(descriptor) or self._brokers.owns(descriptor)
        return own or any(one.owns(descriptor) for one in self._accounts)

    def ready(self, descriptor: int, flags: int) -> None:
        if descriptor == self._lock.waker:
            return self._woken(time.monotonic())
        if self._brokers.owns(descriptor):
            return self._brokers.ready(descriptor)
        if self._placeholders.owns(descriptor):
            return self._placeholders.ready(descriptor, time.monotonic())
        for one in self._accounts:
            if one.owns(descriptor):
                return one.ready(descriptor, flags)
        return None

    def _woken(self, now: float) -> None:
        """We have the lock that was waited for. The core checks again now, unless it was served meanwhile."""
        self._lock.woken()
        if self._phase.name != "awaited":
            return None if self._claims else self._release_lock()
        self._phase, self._place_again, self._out_of_date = LockPhase("offered", now + UNUSED), None, True
        return self._emit(events.LockOffered())

    def close(self) -> None:
        self._placeholders.close()
        self._brokers.close()
        for one in self._accounts:
            one.close()

    # ---------------------------------------------------------------- safe-gpu

    @property
    def _mode(self) -> str:
        return self._kept.settings.get("safe-gpu", "auto")

    def find(self) -> None:
        """Tell the core if a process that is not a broker holds the lock: safe-gpu may be used here."""
        if self._mode == "off" or (user := self._lock.user()) is None or user.pid is None:
            return
        now = time.monotonic()
        if user.pid != self._user[0] or now - self._user[1] >= FIND_AGAIN:
            self._user = (user.pid, now)
            self._emit(events.LockUsed(user.pid, str(user).lower()))

    def maintain(self) -> None:
        """From time to time."""
        self.find()
        self._brokers.maintain()
        self._lock.examine()
        self._out_of_date = self._out_of_date or bool(self._placeholders.failures) or self._lock_trouble != self._logged

    # ---------------------------------------------------------------- what the core says

    def check(self, one: Check) -> None:
        """At once where nobody keeps accounts; else after the turn, so that what ended in it is given back first."""
        if self._phase.name == "offered":
            self._phase = LockPhase()
        self._number += 1
        self._claims.append(Claim(self._number, one))
        if self._accounts:
            self._out_of_date = True
        else:
            self._begin()

    def keep(self, one: UpdateNeighbours) -> None:
        before, self._kept = self._kept.settings.get("gpuget", ""), one
        self._brokers.keep(one.held, ignoring=one.settings.get("users") == "ignore")
        text = one.settings.get("gpuget", "")
        if text != before:
            self._remove("gpuget", replaced=bool(text))
            if text:
                self.add(self._gpuget(text, self))
        self._out_of_date = True

    def unlock(self, one: Unlock) -> None:
        """The core has decided on everything reported to it. The lock may be needed for later requests."""
        self._undecided.clear()
        self._out_of_date = True

    def reconcile(self) -> None:
        """After each turn: what is nobody's any more is given back, and what was asked for begins."""
        if self._out_of_date:
            self._out_of_date = False
            claimed = self._claimed()
            for neighbour in self._accounts:
                neighbour.keep(self._kept, claimed)
            self._brokers.give_back(claimed.union(self._kept.held))
            self._reconcile_placeholders(time.monotonic())
            self._begin()
            if not self._claims and self._phase.name != "offered":
                self._release_lock()
            if self._shown() != self._told:
                self.changed()

    def _claimed(self) -> frozenset[str]:
        under_way = [one.check.devices for one in self._claims if one.step != "waiting"]
        return self._kept.leaving.union(self._undecided, *under_way)

    def _reconcile_placeholders(self, now: float) -> None:
        """One on each device of a lease where nobody else is to be seen; what is being checked is left as it is."""
        wanted = self._kept.unseen if self._mode == "on" else frozenset()
        checked = self._undecided.union(*(one.check.devices for one in self._claims))
        for uuid in self._placeholders.devices - wanted - checked:
            self._placeholders.end(uuid, now)
        missing = tuple(sorted(uuid for uuid in wanted - checked if self._may_place(uuid, now)))
        if missing and self._place_again is None:
            self._number += 1
            self._claims.append(Claim(self._number, Check(0, missing), leased=True))

    def _is_empty(self, seen: Occupancy, now: float) -> bool:
        processes = seen.processes
        placeholders = self._placeholders.keys(now)
        strangers = [
            one for one in processes or () if not one.graphics and (one.pid, one.start_time) not in placeholders
        ]
        return processes is not None and seen.lost is None and not strangers

    def _may_place(self, uuid: str, now: float) -> bool:
        cuda = any(one.uuid == uuid and one.vendor == "nvidia" for one in self._devices)
        return cuda and self._placeholders.may_place(uuid, now)

    # ---------------------------------------------------------------- the steps of a check

    def _begin(self) -> None:
        if self._claims and self._claims[0].step == "waiting" and not self._yields(time.monotonic()):
            self._claims[0].step = "asking"
            self._ask(0)

    def _yields(self, now: float) -> bool:
        """Whether users of safe-gpu go first: check after check, and their placeholders, kept the lock from them."""
        if self._lock.held and now - self._lock.since > MAX_HELD:
            self._release_lock()
            if not self._lock.held:
                self._phase = LockPhase("yielded", now + PAUSE)
            return True
        return self._phase.name == "yielded"

    def _ask(self, place: int) -> None:
        """One neighbour after the other; then the lock."""
        claim = self._claims[0]
        try:
            if place < len(self._accounts) and claim.devices and not claim.leased:
                self._accounts[place].claim(claim.number, claim.devices)
            else:
                self._check_devices()
        except Exception as trouble:  # a shortage, or a mistake of ours, ends this check and no other
            if self._claims and self._claims[0] is claim:
                self._refuse(f"The devices could not be checked: {type(trouble).__name__}.")
            raise

    def answered(self, neighbour: Neighbour, number: int, held: Mapping[str, str]) -> None:
        claim = self._claims[0] if self._claims else None
        if claim is None or claim.number != number or claim.step != "asking":
            return  # the driver failed meanwhile, and the check with it
        claim.held.update(held)
        self._ask(self._accounts.index(neighbour) + 1)

    def _check_devices(self) -> None:
        claim, now = self._claims[0], time.monotonic()
        if not claim.devices:
            return self._done({})
        self.find()
        free = self._mode == "off" or self._lock.take(make=self._mode == "on")
        if not free and (holder := self._lock.holder()).user not in claim.check.ignored_users:
            self._phase = LockPhase("awaited")
            self._lock.wait()
            why = f"{holder} is choosing GPUs with safe-gpu right now."
            return self._refuse(why, temporary=True, user=holder.user, pid=holder.pid)
        self._phase = LockPhase()
        if not claim.leased:
            try:
                claim.held.update(self._brokers.take(claim.devices))
            except OSError as trouble:
                return self._refuse(f"The devices cannot be claimed before other brokers: {in_words(trouble)}.")
            if not claim.devices:
                return self._done({})
        if not self._sampling.may_ask(now):
            return self._refuse("The GPU driver does not answer.")
        claim.step = "looking"
        return self._sampling.ask("check " + " ".join(claim.devices), now)

    def checked(self, seen: Mapping[str, Occupancy]) -> None:
        """The sampler's answer. Where it saw nobody, safe-gpu would see nobody either."""
        now = time.monotonic()
        if self._mode == "on":
            for uuid, occupancy in seen.items():
                if self._is_empty(occupancy, now) and self._may_place(uuid, now):
                    self._placeholders.place(uuid, now)
        self._done(seen)

    def _done(self, seen: Mapping[str, Occupancy]) -> None:
        claim = self._next()
        if claim.leased:
            return self._release_lock()
        self._undecided.update(claim.devices)
        return self._emit(events.Checked(claim.check.revision, seen, claim.held))

    def _refuse(self, why: str, temporary: bool = False, user: str = "", pid: int | None = None) -> None:
        claim = self._next()
        self._release_lock()
        if claim.leased:
            self._place_again = time.monotonic() + PLACE_AGAIN
        else:
            self._emit(events.CheckRefused(claim.check.revision, why, temporary, user, pid))

    def _release_lock(self) -> None:
        """Of the lock, unless the core has yet to decide under it, or a placeholder is not there yet."""
        if not self._undecided and not self._placeholders.placing:
            self._lock.give()

    def _next(self) -> Claim:
        self._out_of_date = True
        return self._claims.pop(0)

    def failed(self) -> None:
        """The driver did not answer: every check failed with it, and the core hears so."""
        self._claims.clear()
        self._out_of_date = True
