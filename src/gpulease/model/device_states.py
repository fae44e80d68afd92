"""PURE: what state a device is in, as far as a sample alone can tell: free, outside or lost; why it is slowed."""

from __future__ import annotations

from gpulease.model.values import Device, Process

# Idle drivers keep up to about 900 MB where only version 1 of the memory call is known.
UNEXPLAINED_MEMORY = 1 << 30


# Why a driver lowers the clocks, by NVML's bits and in nvidia-smi's words; a GPU that is idle (1) is not slowed.
THROTTLING = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}


def throttle_reasons(bits: int | None) -> tuple[str, ...] | None:
    return None if bits is None else tuple(word for bit, word in THROTTLING.items() if bits & bit)


def computing(device: Device) -> tuple[Process, ...]:
    """Processes that count as use. Whoever only draws on a display does not."""
    return tuple(process for process in device.processes or () if not process.graphics)


def unexplained_memory(device: Device, threshold: int = UNEXPLAINED_MEMORY) -> int:
    """Bytes in use that no visible process accounts for, 0 below the threshold.

    Processes in a container may be invisible from here, so that no process is no proof of idleness.
    """
    if device.memory_used is None:
        return 0
    known = sum(process.memory or 0 for process in device.processes or ())
    rest = device.memory_used - known
    return rest if rest > threshold else 0


def state_of(device: Device) -> str:
    if device.lost is not None:
        return "lost"
    unknown = device.processes is None or device.memory_used is None
    return "outside" if unknown or computing(device) or unexplained_memory(device) else "free"
