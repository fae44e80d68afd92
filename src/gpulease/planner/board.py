"""The devices as one plan moves over them: what is free, what was just granted, what is held for whom.

And what runs beside them: how many of one sweep, which may have a cap, and how many that need no device. A cap keeps
its own sweep back and nobody else. Made for every plan and thrown away with it. Not here: which of the devices
that fit is best (placement) and when busy ones will be free (holds).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf

from gpulease.model.devices import of_kind
from gpulease.model.values import Device, Lease, Request, Waiting
from gpulease.planner.device_states import FREE, OUTSIDE, SHARED, DeviceState, DeviceView, device_state
from gpulease.planner.lengths import Lengths
from gpulease.planner.line import Family, family_of
from gpulease.planner.packing import Peak, known
from gpulease.planner.policy import UNLIMITED, Policy

NO_VIEW = DeviceView()
NO_PEAKS: Mapping[str, Peak] = {}


class Slot:
    """One device during one plan."""

    __slots__ = (
        "beside",
        "count",
        "device",
        "ends",
        "held_for",
        "host",
        "leases",
        "reserve",
        "state",
        "taken",
        "view",
        "window",
    )

    def __init__(self, device: Device, leases: Sequence[Lease], view: DeviceView, policy: Policy) -> None:
        self.device = device
        self.view = view
        self.host = view.host
        self.leases = leases
        self.state: DeviceState = device_state(device, leases, view, policy)
        self.count = len(leases)
        self.taken = sum(lease.memory or 0 for lease in leases)
        self.beside = min((lease.max_leases for lease in leases if lease.max_leases is not None), default=None)
        self.reserve = policy.memory_reserve
        self.ends: list[tuple[float, int]] | None = None  # kept by holds, which works it out
        self.held_for: str | None = None
        self.window = inf  # how long somebody else may run here; inf when it is not held

    @property
    def whole(self) -> bool:
        """Whether it can be given whole."""
        return self.count == 0 and self.state.state == FREE

    @property
    def unused(self) -> float:
        """The part of it that nobody has, from 0 to 1."""
        if self.whole:
            return 1.0
        if not self.taken or not self.device.memory_total:
            return 0.0
        return max(0.0, 1 - self.taken / self.device.memory_total)

    @property
    def most(self) -> int:
        """Bytes of the largest share that it could ever serve."""
        total = self.device.memory_total or 0
        return total - int(total * self.reserve)

    @property
    def outside_processes(self) -> bool:
        """Whether what keeps it out of reach are processes that are seen, and no other tool's claim."""
        state = self.state
        return state.state == OUTSIDE and bool(state.pids) and state.neighbour is None

    @property
    def outsiders(self) -> tuple[tuple[int, int | None], ...]:
        """The processes of strangers, for a lease beside them."""
        if not self.outside_processes:
            return ()
        return tuple((one.pid, one.start_time) for one in self.device.processes or () if one.pid in self.state.pids)

    def room(self, forced: bool = False, beside: bool = False) -> int:
        """Bytes that one more share may have; -1 when none may come here. `beside`: also beside strangers."""
        device = self.device
        in_reach = self.state.state in (FREE, SHARED) or (beside and self.outside_processes)
        if not in_reach or self.state.neighbour or (self.count and not self.taken):
            return -1
        if device.memory_total is None or device.memory_used is None or device.processes is None:
            return -1
        reserve = 0 if forced else int(device.memory_total * self.reserve)
        return device.memory_total - reserve - max(self.taken + self._foreign(), device.memory_used)

    def _foreign(self) -> int:
        """Bytes of strangers, which come on top of what the leases here have, be that in use yet or not."""
        if not self.outside_processes:
            return 0
        known = self.view.explained | self.view.placeholders
        ours = sum(one.memory or 0 for one in self.device.processes or () if one.pid in known)
        return max(0, (self.device.memory_used or 0) - ours)

    def crowded(self, limit: int | None, most: int | None) -> bool:
        """Whether one more lease is more than the request, the policy or a lease on it wants."""
        if most is not None and self.count >= most:
            return True
        # A lease that is here sees, once the newcomer has come, exactly `count` others beside it.
        if self.beside is not None and self.count > self.beside:
            return True
        return limit is not None and self.count > limit

    def take(self, memory: int | None, max_leases: int | None) -> None:
        self.count += 1
        self.taken += memory or 0
        if max_leases is not None:
            self.beside = max_leases if self.beside is None else min(self.beside, max_leases)


class Board:
    """All devices, by host, with the answers that a plan asks again and again."""

    def __init__(
        self,
        devices: Iterable[Device],
        leases: Iterable[Lease],
        views: Mapping[str, DeviceView],
        policy: Policy,
        now: float,
        unbelieved: frozenset[str] = frozenset(),
        peaks: Mapping[str, Peak] = NO_PEAKS,
        lengths: Lengths | None = None,
    ) -> None:
        on: dict[str, list[Lease]] = {}
        for lease in leases:
            for uuid in lease.devices:
                on.setdefault(uuid, []).append(lease)
        self.policy, self.unbelieved, self.peaks = policy, unbelieved, peaks
        self.slots = [
            Slot(device, on.get(device.uuid, ()), views.get(device.uuid, NO_VIEW), policy) for device in devices
        ]
        self.hosts: dict[str, list[Slot]] = {}
        for slot in self.slots:
            self.hosts.setdefault(slot.host, []).append(slot)
        self.now = now
        self.lengths = lengths or Lengths({}, (), now)
        self.spared: str | None = None
        self._matching: dict[Family, list[list[Slot]]] = {}
        self._steps: dict[int, list[tuple[float, int]]] = {}

    def matching(self, family: Family) -> list[list[Slot]]:
        """The devices that the filters admit, host by host."""
        found = self._matching.get(family)
        if found is None:
            admitted = [slot for slots in self.hosts.values() for slot in slots if admits(family, slot.device)]
            wanted = of_kind(family.devices_wanted, admitted, lambda slot: slot.device.instance is not None)
            found = [[slot for slot in wanted if slot.host == host] for host in self.hosts]
            self._matching[family] = found = [slots for slots in found if slots]
        return found

    def steps(self, family: Family) -> list[tuple[float, int]]:
        """The most that fits now, as (longest duration, amount); held devices serve short ones only.

        By identity: the queue keeps one object for equal families, and hashing one is what a plan
        would spend most of its time on.
        """
        found = self._steps.get(id(family))
        if found is None:
            hosts = self.matching(family)
            windows = sorted({slot.window for slots in hosts for slot in slots} | {inf}, reverse=True)
            amounts = [(window, self._amount(family, hosts, window)) for window in windows]
            self._steps[id(family)] = found = [step for step in amounts if step[1] > 0]
        return found

    def fits(self, family: Family, size: int, duration: float | None) -> bool:
        """Whether this amount fits now."""
        span = inf if duration is None else duration
        return any(span <= window and size <= amount for window, amount in self.steps(family))

    def _amount(self, family: Family, hosts: list[list[Slot]], window: float) -> int:
        packed = self.share_of(family)
        if not family.share and packed is None:
            return max((sum(s.whole and s.window >= window for s in slots) for slots in hosts), default=0)
        open_slots = [slot for slots in hosts for slot in slots if slot.window >= window]
        limit = family.max_leases if packed is None else self.policy.pack_most - 1
        space = max((self.space(slot, limit, beside=family.beside_outside) for slot in open_slots), default=0)
        return space if packed is None else int(space >= packed)  # all of a shape want the same: one fits, or none

    def believed(self, waiting: Waiting) -> Request:
        """The request, without the time that it declares if its user is not believed; a packed one as it is known."""
        request = self.as_seen(waiting).request
        return request._replace(duration=None) if waiting.user in self.unbelieved else request

    def as_seen(self, waiting: Waiting) -> Waiting:
        """A packed request wants the share that similar jobs used; if that is unknown, it wants a device alone."""
        if not waiting.packed:
            return waiting
        share = self.share_of(family_of(waiting.kind, waiting.request, waiting.shape))
        if share is None:
            return waiting
        return waiting._replace(request=waiting.request._replace(memory=share, max_leases=self.policy.pack_most - 1))

    def share_of(self, family: Family) -> int | None:
        """Bytes that each packed request of a family wants; None where it is to be alone."""
        peak = None if family.shape is None else known(self.peaks, family.shape, self.now)
        if peak is None:
            return None
        fits = any(slot.most >= peak.memory for slots in self.matching(family) for slot in slots)
        return peak.memory if fits else None

    def space(self, slot: Slot, max_leases: int | None, forced: bool = False, beside: bool = False) -> int:
        """Bytes for one more share here, limits of leases on a device included; -1 when none may come."""
        most = None if forced else self.policy.max_leases
        return -1 if slot.crowded(max_leases, most) else slot.room(forced, beside)

    def least_memory(self, family: Family) -> int | None:
        """Of the smallest device that may serve a family: a share is the largest part of that one."""
        totals = [slot.device.memory_total for slots in self.matching(family) for slot in slots]
        return min((total for total in totals if total), default=None)

    def ever(self, family: Family, size: int) -> bool:
        """Whether some host could serve this amount if nobody else were there."""
        hosts = self.matching(family)
        if not family.share:
            return any(len(slots) >= size for slots in hosts)
        return any(slot.most >= size for slots in hosts for slot in slots)

    def spare(self) -> None:
        """Steer requests off the host that should be empty soonest, as long as they fit elsewhere.

        Nothing idles for it. What a lease has run is the estimate of what it will still run.
        """
        if len(self.hosts) > 1:
            self.spared = min(self.hosts, key=self._age)

    def _age(self, host: str) -> float:
        sinces = {lease.id: lease.since for slot in self.hosts[host] for lease in slot.leases}
        return sum(self.now - since for since in sinces.values())

    def oldest(self, host: str) -> float:
        """Since when the oldest lease of a host runs; inf when it has none."""
        slots = self.hosts[host]
        entered = self.now if any(slot.count > len(slot.leases) for slot in slots) else inf
        return min((lease.since for slot in slots for lease in slot.leases), default=entered)

    def take(self, slots: Iterable[Slot], request: Request) -> None:
        for slot in slots:
            slot.take(request.memory, request.max_leases)
        self._steps.clear()

    def hold(self, slots: Iterable[Slot], id: str, window: float) -> None:
        for slot in slots:
            slot.held_for = id
            slot.window = window
        self._steps.clear()


def admits(family: Family | Request, device: Device) -> bool:
    """Whether the filters of a request allow this device, regardless of its holder."""
    return refusal(family, device) is None


def refusal(family: Family | Request, device: Device) -> str | None:
    """The filter that keeps a request off this device."""
    if device.uuid in family.exclude:
        return "excluded-by-request"
    if family.devices and device.uuid not in family.devices:
        return "not-named"
    if family.models and not any(matches(model, device) for model in family.models):
        return "model"
    if family.min_memory is not None and (device.memory_total or 0) < family.min_memory:
        return "too-small"
    return None


def matches(name: str, device: Device) -> bool:
    return name.casefold() in device.name.casefold()


# -------------------------------------------------------------------- beside the devices

NO_CAPS: Mapping[int, int] = {}


class RunningCounts:
    """Counted from the leases, and on as a plan grants."""

    def __init__(self, leases: Iterable[Lease], caps: Mapping[int, int], slots: int) -> None:
        self.caps, self.slots = caps, slots
        self.capped: Counter[int] = Counter()
        self.without_device: Counter[str] = Counter()  # by user
        for lease in leases:
            self._count(lease.cap, None if lease.devices else lease.owner.user)

    def copy(self) -> RunningCounts:
        other = RunningCounts((), self.caps, self.slots)
        other.capped, other.without_device = self.capped.copy(), self.without_device.copy()
        return other

    def add(self, waiting: Waiting) -> None:
        self._count(waiting.cap, None if waiting.request.gpus else waiting.user)

    def _count(self, cap: int | None, user: str | None) -> None:
        if cap is not None:
            self.capped[cap] += 1
        if user is not None:
            self.without_device[user] += 1

    def left(self, cap: int | None) -> int:
        """How many more of a sweep may start."""
        if cap is None or cap not in self.caps:
            return UNLIMITED
        return max(0, self.caps[cap] - self.capped[cap])

    @property
    def free_slots(self) -> int:
        """How many more that need no device may start."""
        return max(0, self.slots - self.without_device.total())
