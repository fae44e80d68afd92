"""Other brokers of this machine, which nobody need trust: no device is granted that one of them has claimed.

A claim is a name (system/claims.py). It is taken before the devices are checked for a grant, held for as long
as the device is leased, by the keeper too (claim_shelves.py), and given back after the commit that ends the lease.
The kernel says who holds a claim of another. Since when, and for what, is what its holder says of itself:
that is read without waiting for it, bounded, and only shown.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gpulease.broker.core.instructions import Holding
from gpulease.broker.neighbours.claim_shelves import Shelves
from gpulease.model.store import Document
from gpulease.system import claims as system_claims
from gpulease.system import untrusted
from gpulease.system.claims import LETTERS, ClaimHolder, read, say, shown, through, whose
from gpulease.system.claims import LONGEST_TOLD as LONGEST
from gpulease.system.places import Place

ANSWER = 0.05  # seconds that a sample waits for what the holders say
CHECK_INTERVAL = 10.0  # seconds after which a holder whose connection is open is looked for again
LIVED = 0.2  # seconds that a connection lasts at least for its end to be a sign of the claim's
GUESTS = 32  # connections of others that are kept, for each device
AT_ONCE, DEAF = 16, 0.1  # connections that are taken at a time, and seconds until the next
SYSTEM = "system"
NOTHING: tuple[object, object] = ({}, {"trouble": None, "holders": {}})  # others hold nothing


class OwnClaim:
    """A claim of ours, and who asked about it."""

    __slots__ = ("deaf", "guests", "holding", "socket")

    def __init__(self, taken: socket.socket) -> None:
        self.socket = taken
        self.holding: Holding | None = None  # None: nobody was granted it yet
        self.guests: list[socket.socket] = []
        self.deaf = 0.0  # until when nobody is answered


class OtherClaim:
    """A claim of another."""

    __slots__ = ("answered", "connected", "heard", "holder", "since", "told", "until")

    def __init__(self, connected: socket.socket | None, holder: ClaimHolder, now: float) -> None:
        self.connected, self.holder = connected, holder
        self.heard, self.answered = b"", False
        self.since, self.until = now, 0.0 if connected is None else now + ANSWER  # until when it is waited for
        self.told: dict[str, Any] = {}


class NextStep(NamedTuple):
    """What is done when the holders have answered, or had the time to."""

    action: Callable[[], None]
    until: float


class Claims:
    def __init__(
        self,
        poll: select.epoll,
        place: Place,
        machine: str | None,
        changed: Callable[[], None],
        log: Callable[[str], None],
        name_of: Callable[[int], str],
    ) -> None:
        """`machine`: the folder of a simulated one."""
        self._poll, self._place, self._changed, self._name_of = poll, place, changed, name_of
        self._machine = system_claims.machine_of(machine)
        self._own: dict[str, OwnClaim] = {}
        self._others: dict[str, OtherClaim] = {}
        self._descriptors: dict[int, str] = {}  # of ours that listen and of connections to others: the device
        self._after: list[NextStep] = []
        self._kept: Mapping[str, Holding] = {}
        self._ignoring = False  # users' claims: of a system broker that was told so
        self._deaf: set[str] = set()
        with contextlib.suppress(OSError):
            self._here = system_claims.announce(self._machine)
        self._shelves = Shelves(poll, place.kept("keeper"), machine or "", self._put_all, log)
        self._told = self._state()  # the last that was called a change
        self._find()

    # ---------------------------------------------------------------- what others hold

    @property
    def held(self) -> dict[str, str]:
        return {uuid: self._through(one) for uuid, one in self._others.items() if not self._ignores(one.holder)}

    @property
    def shown(self) -> Document:
        others = self._others.items()
        holders = {uuid: shown(one.holder, whose(one.holder, self._name_of), one.told) for uuid, one in others}
        return {"trouble": self._shelves.trouble, "holders": holders}

    def _through(self, other: OtherClaim) -> str:
        return through(whose(other.holder, self._name_of), other.told)

    def see(self, devices: Iterable[str], then: Callable[[], None]) -> None:
        """A sample is there: look who holds what, and then go on."""
        now = time.monotonic()
        for uuid in devices:
            other = self._others.get(uuid)
            known = other is not None and other.connected is not None and now - other.since < CHECK_INTERVAL
            if uuid not in self._own and not known:
                with contextlib.suppress(OSError):  # a shortage of descriptors: what was known stays
                    self._find_holder(uuid, now)
        self._compare()
        until = max((other.until for other in self._others.values()), default=0.0)
        self._after.append(NextStep(then, until))
        self._continue(now)

    def _state(self) -> tuple[object, object]:
        return self.held, self.shown

    def _compare(self) -> None:
        if not self._others and self._told == NOTHING and self._shelves.trouble is None:
            return
        if self._told != (state := self._state()):
            self._told = state
            self._changed()

    def _continue(self, now: float) -> None:
        reading = any(other.until for other in self._others.values())
        while self._after and (not reading or self._after[0].until <= now):
            self._after.pop(0).action()

    def _find_holder(self, uuid: str, now: float) -> None:
        """The holder, if there is one. What leases of ours hold is claimed, once it can be."""
        if uuid in self._kept and uuid not in self._own:
            self._take(uuid, now)
            return
        before, found = self._others.get(uuid), None
        for system in (False, True):
            found = found or system_claims.ask(self._name(uuid, system))
        if found is None and before is not None and before.connected is None and not self._is_free(uuid):
            found = None, ClaimHolder(system_claims.user_at(self._name(uuid)))  # the name is taken, and nobody listens
        self._drop(uuid)
        if found is not None:
            self._meet(uuid, OtherClaim(*found, now), before)

    def _is_free(self, uuid: str) -> bool:
        trial = system_claims.take(self._name(uuid))
        if trial is not None:
            untrusted.close_listener(trial)
        return trial is not None

    def _meet(self, uuid: str, other: OtherClaim, before: OtherClaim | None) -> None:
        self._others[uuid] = other
        if before is not None and before.holder == other.holder:
            other.told = before.told
        if other.connected is not None:
            self._register(other.connected, uuid)

    def _drop(self, uuid: str) -> None:
        other = self._others.pop(uuid, None)
        if other is not None:
            self._hang_up(other)

    def _hang_up(self, other: OtherClaim) -> None:
        if other.connected is not None:
            self._unregister(other.connected)
            untrusted.close(other.connected)
        other.connected, other.until = None, 0.0

    def _read_holder(self, uuid: str, other: OtherClaim, now: float) -> None:
        """One line of JSON, and then nothing until the claim ends."""
        assert other.connected is not None
        try:
            data = untrusted.receive(other.connected, LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        other.heard += data
        if data and not other.answered and len(other.heard) <= LONGEST:
            if other.heard.endswith(b"\n"):
                other.told, other.until, other.answered = read(other.heard), 0.0, True
        else:
            self._hang_up(other)  # if it says too much, or ends all the time, it is looked for at the next sample
            if not data and now - other.since >= LIVED:
                with contextlib.suppress(OSError):
                    self._find_holder(uuid, now)
        self._compare()

    # ---------------------------------------------------------------- what we hold

    def take(self, devices: Iterable[str]) -> dict[str, str]:
        """Claim these; returns the ones that others have, and who it is. An OSError if that is unknown."""
        now, known = time.monotonic(), bool(self._others)
        found = {uuid: self._take(uuid, now) for uuid in devices if uuid not in self._own}
        if known or self._others:
            self._compare()
        return {uuid: self._through(one) for uuid, one in found.items() if one is not None}

    def _take(self, uuid: str, now: float) -> OtherClaim | None:
        taken, found = system_claims.take_or_ask(self._name(uuid))
        if found is None:
            found = system_claims.ask(self._name(uuid, system=True))
        elif self._ignores(found[1]):
            taken, second = system_claims.take_or_ask(self._name(uuid, system=True))
            if second is not None and found[0] is not None:
                untrusted.close(found[0])
            found = second or found
        before = self._others.get(uuid)
        self._drop(uuid)
        if found is not None:
            other = OtherClaim(*found, now)
            self._meet(uuid, other, before)
            if not self._ignores(other.holder):
                if taken is not None:
                    untrusted.close_listener(taken)
                return other
        if taken is not None:
            self._add(uuid, taken)
            self._put(uuid)
        return None

    def _name(self, uuid: str, system: bool = False) -> str:
        return system_claims.claim_name(self._machine, uuid, system)

    def _ignores(self, holder: ClaimHolder) -> bool:
        return self._ignoring and holder.uid not in (0, os.geteuid())

    def _add(self, uuid: str, taken: socket.socket) -> None:
        self._own[uuid] = OwnClaim(taken)
        self._register(taken, uuid)

    def keep(self, held: Mapping[str, Holding], ignoring: bool) -> None:
        """These are leased. Their claims are put where they outlast the broker, before any client hears of a lease."""
        now = time.monotonic()
        self._kept, self._ignoring = held, ignoring and self._place.kind == SYSTEM
        for uuid, holding in held.items():
            own = self._own.get(uuid)
            if own is None:
                with contextlib.suppress(OSError):
                    self._find_holder(uuid, now)
                own = self._own.get(uuid)
            if own is not None and own.holding != holding:
                own.holding = holding
                self._send_away(own)
                self._put(uuid)
        self._compare()

    def give_back(self, kept: frozenset[str]) -> None:
        """All but these."""
        for uuid in self._own.keys() - kept:
            own = self._own.pop(uuid)
            self._unregister(own.socket)
            self._send_away(own)
            self._shelves.clear(uuid)
            untrusted.close_listener(own.socket)

    def _find(self) -> bool:
        """What the broker before this one held, if its keeper is there: what of it is not leased is given back."""
        found = self._shelves.find()
        for uuid, taken in found.items():
            taken.setblocking(False)
            taken.listen(system_claims.BACKLOG)  # from now on it is this process that the kernel names
            self._drop(uuid)
            self._add(uuid, taken)
            self._own[uuid].holding = self._kept.get(uuid)
        return bool(found)

    def _put_all(self) -> None:
        """Another keeper is needed, or the former may answer now."""
        if self._find():
            self._changed()
        for uuid in list(self._own):
            self._put(uuid)
        self._compare()

    def _put(self, uuid: str) -> None:
        own = self._own[uuid]
        self._shelves.put(uuid, own.socket, b"null" if own.holding is None else json.dumps(own.holding.leases).encode())

    def _send_away(self, own: OwnClaim) -> None:
        """Earlier replies to them are not true any more: they look again."""
        for guest in own.guests:
            untrusted.close(guest)
        own.guests.clear()

    def _answer(self, uuid: str, own: OwnClaim, now: float) -> None:
        holding = own.holding or Holding(())
        kind, user, since, note = holding.kind, holding.user, holding.since or None, (holding.note or "")[:LETTERS]
        line = say(broker=self._place.kind, kind=kind, user=user, since=since, note=note)
        for _ in range(AT_ONCE):
            try:
                guest, _ = own.socket.accept()
            except BlockingIOError:
                return
            except OSError:
                break
            guest.setblocking(False)
            with contextlib.suppress(OSError):
                guest.send(line)
            own.guests.append(guest)
            if len(own.guests) > GUESTS:
                untrusted.close(own.guests.pop(0))
        own.deaf = now + DEAF
        self._deaf.add(uuid)
        self._unregister(own.socket)

    # ---------------------------------------------------------------- the edge

    def _register(self, one: socket.socket, uuid: str) -> None:
        self._descriptors[one.fileno()] = uuid
        self._poll.register(one.fileno(), select.EPOLLIN)

    def _unregister(self, one: socket.socket) -> None:
        if self._descriptors.pop(one.fileno(), None) is not None:
            self._poll.unregister(one.fileno())

    @property
    def due(self) -> float | None:
        moments = [one.until for one in self._after[:1]]
        moments += [self._own[uuid].deaf for uuid in self._deaf & self._own.keys()]
        return min((one for one in (*moments, self._shelves.due) if one is not None), default=None)

    def overdue(self, now: float) -> None:
        for other in self._others.values():
            if other.until and other.until <= now:
                other.until = 0.0
        self._continue(now)
        for uuid in list(self._deaf):
            own = self._own.get(uuid)
            if own is None or own.deaf <= now:
                self._deaf.discard(uuid)
            if own is not None and own.deaf <= now and own.socket.fileno() not in self._descriptors:
                self._register(own.socket, uuid)
        self._shelves.overdue(now)

    def owns(self, descriptor: int) -> bool:
        return descriptor in self._descriptors or self._shelves.owns(descriptor)

    def ready(self, descriptor: int) -> None:
        if self._shelves.owns(descriptor):
            return self._shelves.ready()
        uuid, now = self._descriptors[descriptor], time.monotonic()
        own, other = self._own.get(uuid), self._others.get(uuid)
        if own is not None and own.socket.fileno() == descriptor:
            self._answer(uuid, own, now)
        elif other is not None:
            self._read_holder(uuid, other, now)
        return self._continue(now)

    def maintain(self) -> None:
        self._shelves.keep()

    def close(self) -> None:
        """The broker ends. What is leased stays claimed by the keeper."""
        self.give_back(frozenset(self._kept))
        self._shelves.close()
