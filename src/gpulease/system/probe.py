"""What every probe offers, one snapshot of all its devices, and what probes share: processes, topology."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Protocol

from gpulease.model.values import Sample
from gpulease.system import identity
from gpulease.system.reader import Reader


class Probe(Protocol):
    """Reads devices. Raises Unavailable when there is nothing to read; a value it cannot read is None."""

    def snapshot(self) -> Sample: ...


class SeveralProbes:
    """The devices of several vendors in one machine, numbered through."""

    def __init__(self, probes: list[Probe]) -> None:
        self._probes = probes

    def snapshot(self) -> Sample:
        samples = [probe.snapshot() for probe in self._probes]
        devices = list(samples[0].devices)
        for sample in samples[1:]:
            offset = 1 + max((device.index for device in devices), default=-1)
            devices += [device._replace(index=device.index + offset) for device in sample.devices]
        return samples[0]._replace(devices=tuple(devices))


# -------------------------------------------------------------------- processes

Facts = tuple[int | None, str | None, str | None]  # start time, user, command

NOBODY_VISIBLE: Facts = (None, None, None)

READER = Reader()


def facts(pids: Iterable[int], proc: str = "/proc") -> dict[int, Facts]:
    """All None for a process that cannot be seen from here; the command None where it could not be read in time."""
    seen = {pid: one for pid in pids if (one := _seen(pid, proc)) is not None}
    wanted = [(user or "", f"{proc}/{pid}/cmdline") for pid, (_, user, _) in seen.items()]
    lines = dict(zip(seen, READER.read(wanted), strict=True)) if seen else {}
    return {
        pid: NOBODY_VISIBLE if pid not in seen else (*seen[pid][:2], _command(lines[pid], seen[pid][2])) for pid in pids
    }


def _seen(pid: int, proc: str) -> tuple[int, str | None, str] | None:
    """When it began, its user, and its name."""
    try:
        found = identity.family(pid, proc)
        owner = identity.user_of(pid, proc)
    except OSError:
        return None
    return None if found is None else (found.start_time, None if owner is None else user_name(owner), found.name)


def user_name(uid: int) -> str:
    """As `identity.user_name`, which a directory service that hangs would keep waiting."""
    if uid not in identity.known_names:
        (name,) = READER.read([(f"uid {uid}", f"uid {uid}")])
        if name is None:
            return str(uid)
        known = name.decode("utf-8", "surrogateescape") or identity.subordinate(uid)
        identity.known_names[uid] = known or str(uid)
    return identity.known_names[uid]


def _command(line: bytes | None, name: str) -> str | None:
    """The command line; for a process without one (a kernel thread, a zombie) its name in brackets."""
    if line is None:
        return None
    return line.replace(b"\0", b" ").decode(errors="replace").strip() or f"[{name}]"


# -------------------------------------------------------------------- topology

NEAR = 30  # NVML's level for devices below one host bridge; larger numbers are farther apart


def pci_root(bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """The PCI root that `bus_id` hangs on, e.g. `pci0000:40`; None where sysfs does not know it."""
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    path = os.path.realpath(f"{sysfs}/bus/pci/devices/{domain[-4:]}:{rest}")
    parts = [part for part in path.split("/") if part.startswith("pci") and ":" in part]
    return parts[0] if parts else None


def groups(count: int, level: Callable[[int, int], int | None]) -> list[str | None]:
    """A name of the group of each device, where `level(a, b)` tells how far apart two of them are.

    Every device is compared with the first of each group: being below one bridge is the same for all in a group.
    """
    heads: list[int] = []
    names: list[str | None] = []
    for number in range(count):
        levels = [(head, level(head, number)) for head in heads]
        near = [head for head, distance in levels if distance is not None and distance <= NEAR]
        if not near:
            heads.append(number)
        names.append(f"near-{near[0] if near else number}")
    return names if _told(count, level) else [None] * count


def _told(count: int, level: Callable[[int, int], int | None]) -> bool:
    return count > 1 and level(0, 1) is not None
