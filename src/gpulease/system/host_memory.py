"""The memory of the host, as the kernel tells it."""

from __future__ import annotations

from gpulease.model.values import HostMemory


def read(path: str = "/proc/meminfo") -> HostMemory:
    wanted: dict[str, int] = {}
    try:
        with open(path) as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    wanted[name] = int(rest.split()[0]) * 1024
                if len(wanted) == 2:
                    break
    except (OSError, ValueError, IndexError):
        return HostMemory()
    return HostMemory(wanted.get("MemTotal"), wanted.get("MemAvailable"))
