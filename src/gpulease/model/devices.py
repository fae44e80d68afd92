"""PURE: what a device is: free, outside or lost, as a sample shows it, or slowed; a whole GPU or a MIG instance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gpulease.model.values import Device, Process

# Idle drivers keep up to about 900 MB where only version 1 of the memory call is known.
UNEXPLAINED_MEMORY = 1 << 30
Any_ = TypeVar("Any_")

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
    """Processes that count as use. A process that only draws on a display does not."""
    return tuple(process for process in device.processes or () if not process.graphics)


def unexplained_memory(device: Device, threshold: int = UNEXPLAINED_MEMORY) -> int:
    """Bytes in use that no visible process accounts for, 0 below the threshold.

    Processes in a container may be invisible from here, so a device without processes may still be in use.
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


# -------------------------------------------------------------------- whole GPUs or MIG instances


# A CUDA process sees one MIG instance at the most, so several devices are never instances unless somebody asked for
# these: by `--mig`, by the name of a profile, or by naming them. For one device an instance serves where no whole GPU
# does.
WHOLE, ONE, INSTANCES, NAMED = "whole", "one", "instances", "named"


def kind_wanted(gpus: int, named: bool, models: Iterable[str], mig: bool) -> str:
    """`named`: the devices were, so they are meant whatever they are."""
    if mig:
        return INSTANCES
    if named or any(map(is_profile, models)):
        return NAMED
    return ONE if gpus == 1 else WHOLE


def is_profile(model: str) -> bool:
    """Whether it names a kind of MIG instance: `MIG`, `1g.10gb`, `3g`."""
    text = model.casefold()
    return "mig" in text or any(part[:1].isdigit() and part.partition(".")[0].endswith("g") for part in text.split())


def of_kind(kind: str, devices: Sequence[Any_], is_instance: Callable[[Any_], bool]) -> list[Any_]:
    """Of devices that match in all else, those of the kind that is wanted."""
    instances = [device for device in devices if is_instance(device)]
    if kind == NAMED or not (instances or kind == INSTANCES):
        return list(devices)
    whole = [device for device in devices if not is_instance(device)]
    return instances if kind == INSTANCES or (kind == ONE and not whole) else whole
