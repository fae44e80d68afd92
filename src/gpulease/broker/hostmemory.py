"""How much of the host's memory is available, read at most a few times a second."""

from __future__ import annotations

KEPT = 0.2  # seconds that a reading serves


class HostMemory:
    def __init__(self) -> None:
        self._read_at = float("-inf")
        self._free: float | None = None

    def free(self, now: float) -> float | None:
        """The part that is available; None when the kernel does not tell."""
        if not self._read_at <= now < self._read_at + KEPT:
            self._read_at, self._free = now, _read()
        return self._free


def _read() -> float | None:
    wanted = {}
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("MemTotal", "MemAvailable"):
                    wanted[name] = int(rest.split()[0])
                if len(wanted) == 2:
                    break
    except (OSError, ValueError):
        return None
    total = wanted.get("MemTotal")
    return wanted["MemAvailable"] / total if total and "MemAvailable" in wanted else None
