"""The devices as they were seen, what is known of each beside the sample, and the check before a grant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gpulease.broker.core.events import Occupancy, ProcessKey, Received
from gpulease.broker.core.state.tables import Part, Table, at_hand, cell, table, whole
from gpulease.broker.core.values import NOTHING, Blocker, Checking, Idle, Refused
from gpulease.errors import GpuleaseError
from gpulease.model.store import Document
from gpulease.model.values import Device, Lease, Process, Sample
from gpulease.planner import DeviceView
from gpulease.planner.placement import busyness

IGNORED_FOR = 3600.0  # seconds that a user who held safe-gpu's lock for too long is not waited for


class Ended(NamedTuple):
    """The last lease that ended on a device."""

    user: str
    time: float
    ticks: int  # the same moment in clock ticks since boot
    outsiders: tuple[ProcessKey, ...] = ()  # processes that were there before it
    holder: ProcessKey | None = None  # its process, if that lives and somebody else ended the lease


class Devices(Part):
    by_uuid: Table[str, Device] = table(planned=True)
    ended: Table[str, Ended] = table(planned=True)  # the last lease that ended on a device
    excluded: Table[str, str] = table(planned=True)
    known: Table[str, Device] = table()  # as they were seen well since the machine was started
    broken: Table[str, str] = table()  # those that are lost, and how far that was written
    old_labels: dict[str, str] = at_hand()  # by UUID, from before this broker was started
    # The sample
    sample: Sample | None = cell(None)
    sampled_at: float = cell(0.0)
    asked_at: float = cell(0.0)  # when the sample under way was asked for
    sampled_from: float = cell(0.0)  # the same of the last one that came: it is not older
    sampling: bool = cell(False)  # a sample was asked for
    awaiting: tuple[Received[Any], ...] = cell(())  # messages that cannot be answered without one
    sample_due: bool = cell(False)  # an alarm for the next sample is set
    trouble: GpuleaseError | None = cell(None, planned=lambda trouble: trouble is not None)
    failed_at: float = cell(0.0)  # when the driver last did not answer
    # The check
    check: Idle | Checking | Refused = cell(Idle())
    locked: bool = cell(False)  # a check was asked for, and the neighbours' users may not choose meanwhile
    verified: Table[str, None] = table()  # checked since their last lease ended
    # The neighbours, and others who use the devices
    neighbour_holds: Table[str, str] = table(planned=True)  # devices, and which neighbour holds each
    placeholders: Table[ProcessKey, str] = table(planned=True)  # processes of ours that show a device as taken
    neighbours_about: Mapping[str, float] = cell(NOTHING, planned=whole)  # that were found here, and until when
    neighbours_shown: Mapping[str, Document] = cell(NOTHING)  # what the edge tells of them, for people
    lock_user: int | None = cell(None)  # the process that held safe-gpu's lock last, and is no broker
    leaving: Table[str, float] = table(planned=True)  # since their lease ended, nobody has looked or somebody is there
    outside: Table[tuple[str, str], float] = table()  # device and user: when that was last seen
    blockers: Table[str, Blocker] = table()  # by user

    def set_sample(self, sample: Sample, now: float) -> None:
        self.sample = sample
        self.sampled_at = now
        self.sampled_from = self.asked_at
        self.trouble = None
        if list(self.by_uuid) != [device.uuid for device in sample.devices]:
            for uuid in list(self.by_uuid):
                self.by_uuid.drop(uuid)  # put again below, in their order
        for device in sample.devices:
            if self.by_uuid.get(device.uuid) != device:
                self.by_uuid.put(device.uuid, device)

    def set_device(self, uuid: str, seen: Occupancy) -> None:
        known = self.by_uuid.get(uuid)
        if known is None:
            return
        busy = seen.utilization
        if busy is None or busyness(busy) == busyness(known.utilization):  # noise is no reason for another plan
            busy = known.utilization
        after = known._replace(memory_used=seen.memory_used, processes=seen.processes, lost=seen.lost, utilization=busy)
        if after != known:
            self.by_uuid.put(uuid, after)

    def labels(self, uuids: Iterable[str]) -> list[str]:
        """As people know them; before the first sample as they were known when they were leased."""
        return [self.by_uuid[uuid].label if uuid in self.by_uuid else self.old_labels.get(uuid, uuid) for uuid in uuids]

    def exclude(self, uuid: str, note: str | None) -> None:
        """Take it out of service with a note; None puts it back."""
        self.store.write("excluded", uuid, None if note is None else {"note": note})
        self.changes.durable = True
        self.excluded.put_or_drop(uuid, note)

    def seen_since_end(self, uuids: Iterable[str]) -> bool:
        """Whether there was a sample of each of them since its last lease ended."""
        return all(self.leaving.get(uuid, 0.0) <= self.sampled_from for uuid in uuids)

    def lease_began(self, uuids: Iterable[str]) -> None:
        """They must be checked again before anybody else gets them."""
        for uuid in uuids:
            self.ended.drop(uuid)
            self.leaving.drop(uuid)
            self.verified.drop(uuid)

    def lease_ended(self, uuids: Iterable[str], mark: Ended) -> None:
        for uuid in uuids:
            self.ended.put(uuid, mark)
            self.leaving.put(uuid, mark.time)
            self.verified.drop(uuid)
        if isinstance(self.check, Checking) and not self.check.devices.isdisjoint(uuids):
            # What the check under way sees there may be from before this end.
            self.check = self.check._replace(devices=self.check.devices.difference(uuids))

    def views(self, leases: Iterable[Lease], host: str, holds: Mapping[str, str]) -> dict[str, DeviceView]:
        """What is known of each device beside the sample; `holds`: what the neighbours hold.

        A process belongs to a lease when it is on the lease's device and runs as the lease's user.
        """
        on: dict[str, list[Lease]] = {}
        for lease in leases:
            for uuid in lease.devices:
                on.setdefault(uuid, []).append(lease)
        return {
            uuid: self._view(device, on.get(uuid, []), host, holds.get(uuid)) for uuid, device in self.by_uuid.items()
        }

    def _view(self, device: Device, leases: list[Lease], host: str, neighbour: str | None) -> DeviceView:
        ended, excluded = self.ended.get(device.uuid), self.excluded.get(device.uuid)
        if not device.processes and excluded is None and ended is None and neighbour is None:
            return DeviceView(host)
        present = [process for process in device.processes or () if not process.graphics]
        ours = frozenset(one.pid for one in present if (one.pid, one.start_time) in self.placeholders)
        computing = [process for process in present if process.pid not in ours]
        users = {lease.owner.user for lease in leases}
        outsiders = {key for lease in leases for key in lease.outsiders}
        explained = frozenset(p.pid for p in computing if p.user in users and (p.pid, p.start_time) not in outsiders)
        rest = [process for process in computing if process.pid not in explained]
        draining = () if ended is None else tuple(process.pid for process in rest if _outlived(process, ended))
        if ended is not None and ended.holder is not None and not leases:
            draining = (*(pid for pid in draining if pid != ended.holder[0]), ended.holder[0])
        last_used = 0.0 if ended is None else ended.time
        return DeviceView(host, explained, draining, excluded, last_used, ours, neighbour)

    def ignored_users(self, now: float) -> frozenset[str]:
        """Users whose hold on safe-gpu's lock counts for nothing now."""
        blockers = self.blockers.items()
        return frozenset(user for user, one in blockers if one.ignored_since and now - one.ignored_since < IGNORED_FOR)


def _outlived(process: Process, ended: Ended) -> bool:
    """Whether a process was there before the lease ended, and so belonged to it."""
    if process.user != ended.user or (process.pid, process.start_time) in ended.outsiders:
        return False
    return process.start_time is None or process.start_time <= ended.ticks
