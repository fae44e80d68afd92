"""Which devices are near each other, as far as NVML or sysfs know."""

from __future__ import annotations

import os
from collections.abc import Callable

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
