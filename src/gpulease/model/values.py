"""The words of gpulease as immutable values: devices, processes, samples, requests, the queue, leases.

Named tuples and not dataclasses, because the commands that people wait for load this file
(`gpulease help decisions/0002`). Nothing here reads a clock, a file or a driver.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DEFAULT_PRIORITY = 5


class Process(NamedTuple):
    """One process seen on a device. A pid is a process only together with its start time."""

    pid: int
    start_time: int | None = None  # clock ticks since boot, field 22 of /proc/PID/stat
    user: str | None = None
    command: str | None = None
    memory: int | None = None  # bytes of this device
    graphics: bool = False  # draws on a display; does not count as somebody's use
    session: int | None = None  # as the broker's own sampler adds it

    def shown(self, lease: str | None) -> dict[str, Any]:
        """As the contract's documents have it."""
        fields = self._asdict()
        del fields["session"]
        return {**fields, "lease": lease}


class Device(NamedTuple):
    """One GPU, or one MIG instance, as a probe saw it. What the driver refused is None, never 0."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    uuid: str
    name: str
    vendor: str = "nvidia"
    instance: int | None = None  # the number of a MIG instance on the GPU `index`
    memory_total: int | None = None
    memory_used: int | None = None
    utilization: int | None = None
    memory_utilization: int | None = None
    temperature: int | None = None
    power: int | None = None  # milliwatts
    performance_state: int | None = None
    power_limit: int | None = None  # milliwatts, that the driver enforces
    fan_speed: int | None = None  # percent
    throttling: tuple[str, ...] | None = None  # why its clocks are lowered; () when they are not
    pci_bus_id: str | None = None
    group: str | None = None  # devices of one group are near each other (NVLink or PCI root)
    display_active: bool | None = None
    mig_mode: bool | None = None
    processes: tuple[Process, ...] | None = ()
    lost: str | None = None  # why the driver no longer answers for it

    @property
    def label(self) -> str:
        """What people type and read: `0` for a GPU, `0:1` for a MIG instance of it."""
        return str(self.index) if self.instance is None else f"{self.index}:{self.instance}"


class Sample(NamedTuple):
    """What a probe saw of the devices at one moment."""

    time: float  # Unix seconds
    devices: tuple[Device, ...]
    simulated: bool = False
    driver: str | None = None


class Owner(NamedTuple):
    """The holder: a process, proven by all of these together; or only a user, for a reservation."""

    uid: int
    user: str
    host: str
    boot_id: str
    pid: int | None = None
    start_time: int | None = None
    groups: tuple[str, ...] = ()  # of the user; quotas are counted by them
    asked_by: tuple[int, int | None] | None = None  # pid and start time of who made a reservation, which outlives it


class Request(NamedTuple):
    """What somebody wants. Spelled the same on the command line, in Python and on the wire."""

    gpus: int = 1  # whole devices of one host, all at once; 0 for a job that needs none
    memory: int | None = None  # bytes: a share of one device instead of whole ones
    models: tuple[str, ...] = ()  # in order of preference, matched with a part of the name, in any case
    devices: tuple[str, ...] = ()  # UUIDs
    exclude: tuple[str, ...] = ()  # UUIDs
    min_memory: int | None = None
    max_leases: int | None = None  # at most so many leases on a device beside this one
    priority: int = DEFAULT_PRIORITY
    not_before: float | None = None
    duration: float | None = None  # seconds, as declared; None when nobody said
    pack: bool | None = None  # share a device by what its like were seen to use; None: as the machine is set
    beside_outside: bool = False  # a share may be of a device that somebody outside of gpulease uses
    mig: bool = False  # MIG instances instead of whole GPUs
    relative: bool = False  # `not_before` was given as `in 2h`: no step of the wall clock moves it


class Cause(NamedTuple):
    """Why something may not start whatever is free: one sentence, and a few words for a table."""

    sentence: str
    short: str  # of at most 24 characters; a longer one is cut


class Waiting(NamedTuple):
    """A request in the queue: who asks, since when, and in which place."""

    id: str
    request: Request
    user: str
    uid: int
    since: float  # when it came; patience is counted from here
    groups: tuple[str, ...] = ()
    kind: str = "run"  # what the lease will be: run, get, job, pool, reservation
    place: float | None = None  # the order of arrival when it is not `since`, after a `move`
    blocked: Cause | None = None  # why it may not be granted yet, whatever is free
    forced: bool = False  # start now, past the policy's thresholds, never past a lease
    shape: str | None = None  # under which its like are known (broker/core/shapes.py)
    cap: int | None = None  # the sweep that it belongs to, of which only so many may run at a time
    packed: bool = False  # it has a share as large as its like were seen to use
    expected: float | None = None  # seconds that it should run, by what it declared and what that is worth


class Lease(NamedTuple):
    """A granted request."""

    id: str
    kind: str
    devices: tuple[str, ...]  # UUIDs
    owner: Owner
    since: float
    until: float | None = None
    memory: int | None = None  # bytes on its one device, for a share
    priority: int = DEFAULT_PRIORITY
    note: str | None = None
    duration: float | None = None  # seconds, as the request declared; `until` is what ends by the clock
    max_leases: int | None = None  # at most so many leases beside it, as the request asked
    shape: str | None = None  # under which its like are known
    outsiders: tuple[tuple[int, int | None], ...] = ()  # processes that were there before it: pid and start time
    cap: int | None = None  # the sweep that it belongs to, if that has a cap
    packed: bool = False  # by the memory of its like; without `memory` it is alone on its device for now


class HostMemory(NamedTuple):
    """Of the host, in bytes; None where the kernel does not tell."""

    total: int | None = None
    available: int | None = None

    @property
    def free_part(self) -> float | None:
        return self.available / self.total if self.total and self.available is not None else None
