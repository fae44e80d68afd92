"""Which keys a simulated machine has, and which values each of them takes.

Pure: texts in, texts as they are written into the `machine` file out, or a UsageError that names
what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from gpulease.errors import UnknownDevice, UsageError
from gpulease.quantities import parse_bytes
from gpulease.simulation.state import MAXIMUM_INSTANCES, gpu_count

Reader = Callable[[str], str | None]  # a value as typed -> as written, None when it makes no sense


def _size(text: str) -> str | None:
    try:
        return str(parse_bytes(text))
    except UsageError:
        return None


def _number(smallest: int, largest: int, prefix: str = "", suffix: str = "") -> Reader:
    def read(text: str) -> str | None:
        digits = text.strip().upper().removeprefix(prefix).removesuffix(suffix).strip()
        valid = re.fullmatch(r"\d{1,9}", digits) and smallest <= int(digits) <= largest
        return str(int(digits)) if valid else None

    return read


def _power(text: str) -> str | None:
    watts = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)\s*W", text.strip(), re.IGNORECASE)
    return str(round(float(watts[1]) * 1000)) if watts else _number(0, 10**9)(text)


def _text(pattern: str) -> Reader:
    return lambda text: text.strip() if re.fullmatch(pattern, text.strip()) else None


def _optional(read: Reader) -> Reader:
    """`none`, or nothing, stands for what the driver does not support."""
    return lambda text: "none" if text.strip().lower() in ("", "none") else read(text)


PERCENT = (_optional(_number(0, 100, suffix="%")), "a percentage from 0 to 100, or none")
SIZE = (_optional(_size), "a size such as 8G, or bytes, or none")
POWER = (_optional(_power), "milliwatts, or watts such as 250W, or none")
FLAG = (_number(0, 1), "0 or 1")
MILLISECONDS = (_number(0, 3_600_000), "milliseconds, 0 for none")

GPU_KEYS: dict[str, tuple[Reader, str]] = {
    "name": (_optional(_text(r"[^=\r\n]{1,90}")), "a name of at most 90 characters"),
    "uuid": (_text(r"GPU-[0-9A-Za-z-]{1,80}"), "a text such as GPU-5b0c7c3e-…"),
    "memory_total": SIZE,
    "memory_used": SIZE,
    "memory_reserved": SIZE,
    "utilization": PERCENT,
    "memory_utilization": PERCENT,
    "temperature": (_optional(_number(0, 200, suffix="C")), "degrees from 0 to 200, or none"),
    "power": POWER,
    "power_limit": POWER,
    "fan": PERCENT,
    "performance_state": (_optional(_number(0, 15, prefix="P")), "P0 to P15, or none"),
    "display_active": (_optional(FLAG[0]), "0, 1 or none"),
    "pci_bus_id": (
        _optional(_text(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")),
        "a PCI bus id such as 00000000:07:00.0",
    ),
    "group": (_optional(_text(r"[^=\r\n]{1,90}")), "a word, equal for GPUs near each other, or none"),
    "mig": (_optional(_number(0, MAXIMUM_INSTANCES)), f"0 to {MAXIMUM_INSTANCES} instances, or none"),
    "compute_capability": (_optional(_number(10, 999)), "a number such as 80 for 8.0, or none"),
    "lost": FLAG,
}
MACHINE_KEYS: dict[str, tuple[Reader, str]] = {
    "driver_version": (_text(r"[0-9.]{1,60}"), "a version such as 550.54.15"),
    "cuda_version": (_text(r"\d{1,3}\.\d{1,2}"), "a version such as 12.4"),
    "driver.old": (_number(0, 2), "0 for a new driver, 2 for one before _v3 calls, 1 for one before _v2"),
    "fault.init": (_number(0, 999), "the NVML error code of nvmlInit, 0 for none"),
    "fault.slow": MILLISECONDS,
    "fault.hang": (_optional(_text(r"\w{1,90}")), "1 for every call, a part of a call's name, or none"),
    "fault.middle": (_optional(_text(r"\w{1,80}:\d{1,3}")), "CALL:CODE, or none"),
}


def checked(machine: dict[str, str], assignments: Iterable[str]) -> dict[str, str]:
    """The assignments as they are to be written; the first that makes no sense is an error."""
    changes = dict(_checked_one(machine, assignment) for assignment in assignments)
    _refuse_equal_uuids(machine | changes)
    return changes


def _checked_one(machine: dict[str, str], assignment: str) -> tuple[str, str]:
    key, equals, value = assignment.partition("=")
    key = key.strip()
    if not equals:
        raise UsageError(f"{assignment!r} sets nothing.", "Write KEY=VALUE, such as gpu.0.utilization=90.")
    read, allowed = _rule(machine, key)
    written = read(value)
    if written is None:
        raise UsageError(f"{value!r} is no value for {key}.", f"It takes {allowed}.")
    return key, written


def _rule(machine: dict[str, str], key: str) -> tuple[Reader, str]:
    match = re.fullmatch(r"gpu\.(\d{1,9})\.(\w+)", key)
    if match and match[2] in GPU_KEYS:
        if int(match[1]) >= gpu_count(machine):
            last = gpu_count(machine) - 1
            raise UnknownDevice(f"There is no simulated GPU {match[1]}.", f"The GPUs are 0 to {last}.")
        return GPU_KEYS[match[2]]
    if key in MACHINE_KEYS:
        return MACHINE_KEYS[key]
    raise UsageError(
        f"A simulated machine has no key {key!r}.",
        f"The keys are {', '.join(MACHINE_KEYS)}, and gpu.N. with one of {', '.join(GPU_KEYS)}.",
    )


def _refuse_equal_uuids(machine: dict[str, str]) -> None:
    uuids = [machine.get(f"gpu.{index}.uuid", str(index)) for index in range(gpu_count(machine))]
    for uuid in uuids:
        if uuids.count(uuid) > 1:
            raise UsageError(f"Two GPUs cannot both have the UUID {uuid}.", "Give each its own.")
