"""Which devices are near each other: those below one PCI root."""

from __future__ import annotations

import os


def pci_root(bus_id: str | None, sysfs: str = "/sys") -> str | None:
    """The PCI root that `bus_id` hangs on, e.g. `pci0000:40`; None where sysfs does not know it."""
    if not bus_id:
        return None
    domain, _, rest = bus_id.lower().partition(":")
    path = os.path.realpath(f"{sysfs}/bus/pci/devices/{domain[-4:]}:{rest}")
    parts = [part for part in path.split("/") if part.startswith("pci") and ":" in part]
    return parts[0] if parts else None
