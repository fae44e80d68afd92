"""A simulated machine as keys and values: the keys, the devices of a label, and the values of a new machine.

Pure: texts in, texts as they are written into the `machine` file out, or a UsageError that names
what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gpulease.errors import UnknownDevice, UsageError
from gpulease.model.devices import THROTTLING
from gpulease.model.quantities import format_bytes, parse_bytes
from gpulease.simulator.state import MAXIMUM_GPUS, MAXIMUM_INSTANCES, Use, gpu_count, instance_count, is_number

SHOWN = 80  # so many characters of what was typed are repeated in an error


def labels_of(machine: dict[str, str], named: str) -> list[str]:
    """Each entry, an index, a UUID or the beginning of one, as the label of a device that a process can use."""
    entries = [entry.strip() for entry in named.split(",") if entry.strip()]
    if not entries:
        raise UsageError("No device was named.", "Name one by its index, such as `0` or `0,2`.")
    labels = labels_by_uuid(machine)
    found = [_label(machine, labels, entry) for entry in entries]
    for label in found:
        _refuse_split(machine, label)
    return list(dict.fromkeys(found))


def looks_like_devices(word: str) -> bool:
    """Whether a word can name devices; any other is a command."""
    entries = [entry.strip().lower() for entry in word.split(",")]
    return all(entry.startswith(("gpu-", "mig-")) or is_number(entry.replace(":", "")) for entry in entries)


def labels_by_uuid(machine: dict[str, str]) -> dict[str, str]:
    labels = {}
    for gpu in range(gpu_count(machine)):
        uuid = machine.get(f"gpu.{gpu}.uuid", "")
        labels[uuid.lower()] = str(gpu)
        for instance in range(instance_count(machine, gpu)):
            labels[instance_uuid(uuid, instance).lower()] = f"{gpu}:{instance}"
    return labels


def instance_uuid(parent: str, instance: int) -> str:
    """As in nvmlsim.c: two 64-bit FNV-1a hashes of `parent:instance`."""
    high, low, mask = 0xCBF29CE484222325, 0x84222325CBF29CE4, 0xFFFFFFFFFFFFFFFF
    for byte in f"{parent}:{instance}".encode():
        high = (high ^ byte) * 0x100000001B3 & mask
        low = (low ^ byte) * 0x100000001B3 & mask
    digits = f"{high:016x}{low:016x}"
    return f"MIG-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_room(machine: dict[str, str], labels: list[str], memory: int) -> None:
    """No process can use more memory of a device than it has."""
    for label in labels:
        gpu, _, instance = label.partition(":")
        total = machine.get(f"gpu.{gpu}.memory_total", "none")
        if not is_number(total):
            continue
        room = int(total) // (instance_count(machine, int(gpu)) if instance else 1)
        if memory > room:
            raise UsageError(
                f"The simulated device {label} has {format_bytes(room)} of memory, less than {format_bytes(memory)}.",
                f"Ask for at most that, or give it more: gpulease simulate set gpu.{gpu}.memory_total=SIZE.",
            )


def _label(machine: dict[str, str], labels: dict[str, str], entry: str) -> str:
    typed = entry.lower()
    if entry in labels.values():
        return entry
    if typed in labels:
        return labels[typed]
    found = [label for uuid, label in labels.items() if uuid.startswith(typed)]
    if not typed.startswith(("gpu-", "mig-")) or not found:
        raise UnknownDevice(f"There is no simulated device {entry[:SHOWN]!r}.", _devices_here(machine))
    if len(found) > 1:
        raise UnknownDevice(
            f"{entry[:SHOWN]!r} is the beginning of {len(found)} UUIDs.", "Give more of the one that you mean."
        )
    return found[0]


def _refuse_split(machine: dict[str, str], label: str) -> None:
    instances = 0 if ":" in label else instance_count(machine, int(label))
    if instances:
        names = f"{label}:0" if instances == 1 else f"one of {label}:0 to {label}:{instances - 1}"
        raise UsageError(
            f"GPU {label} is split into MIG instances, so no process can use it whole.", f"Name {names} instead."
        )


def _devices_here(machine: dict[str, str]) -> str:
    count = gpu_count(machine)
    gpus = "The only GPU is 0" if count == 1 else f"The GPUs are 0 to {count - 1}"
    return f"{gpus}; instance I of GPU N is N:I where gpu.N.mig is set."


Reader = Callable[[str], str | None]  # a value as typed -> as written, None when it makes no sense
MAXIMUM_BYTES = 90  # of a text; the C library keeps 95, and cutting one could split a letter


def _size(text: str) -> str | None:
    try:
        return text.strip() if text.strip().isdecimal() else str(parse_bytes(text))  # bytes, as `show` prints them
    except UsageError:
        return None


def _number(smallest: int, largest: int, prefix: str = "", suffix: str = "") -> Reader:
    def read(text: str) -> str | None:
        digits = text.strip().upper().removeprefix(prefix).removesuffix(suffix).strip()
        valid = re.fullmatch(r"[0-9]{1,9}", digits) and smallest <= int(digits) <= largest
        return str(int(digits)) if valid else None

    return read


def _power(text: str) -> str | None:
    watts = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*W", text.strip(), re.IGNORECASE)
    return str(round(float(watts[1]) * 1000)) if watts else _number(0, 10**9)(text)


def _reasons(text: str) -> str | None:
    """Words, as the bits that the driver has for them."""
    bits = {word: bit for bit, word in THROTTLING.items()}
    words = [word.strip().lower() for word in text.split(",")]
    known = all(word in bits for word in words)
    return str(sum(bits[word] for word in set(words))) if known else _number(0, 0x7FF)(text)


def _text(pattern: str) -> Reader:
    def read(text: str) -> str | None:
        fits = re.fullmatch(pattern, text.strip(), re.ASCII) and len(text.strip().encode()) <= MAXIMUM_BYTES
        return text.strip() if fits else None

    return read


def _optional(read: Reader) -> Reader:
    """`none` stands for what the driver does not support."""
    return lambda text: "none" if text.strip().lower() == "none" else read(text)


def _fault(read: Reader) -> Reader:
    """0 and `none` both end a fault."""
    return lambda text: "0" if text.strip().lower() in ("0", "none") else read(text)


PERCENT = (_optional(_number(0, 100, suffix="%")), "a percentage from 0 to 100, or none")
SIZE = (_optional(_size), "a size such as 8G, or bytes, or none")
POWER = (_optional(_power), "milliwatts, or watts such as 250W, or none")

GPU_KEYS: dict[str, tuple[Reader, str]] = {
    "name": (_optional(_text(r"[^=]+")), f"a name of at most {MAXIMUM_BYTES} bytes"),
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
    "throttling": (
        _optional(_reasons),
        f"reasons, as sw_power_cap,hw_slowdown ({', '.join(THROTTLING.values())}), 0 or none",
    ),
    "display_active": (_optional(_number(0, 1)), "0, 1 or none"),
    "pci_bus_id": (
        _optional(_text(r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")),
        "a PCI bus id such as 00000000:07:00.0",
    ),
    "group": (_optional(_text(r"[^=]+")), "a word, equal for GPUs near each other, or none"),
    "mig": (_optional(_number(0, MAXIMUM_INSTANCES)), f"0 to {MAXIMUM_INSTANCES} instances, or none"),
    "compute_capability": (_optional(_number(10, 999)), "a number such as 80 for 8.0, or none"),
    "compute_mode": (_number(0, 3), "0 for default, 2 for prohibited, 3 for one process only"),
    "lost": (_fault(_number(0, 1)), "0 or 1"),
}
MACHINE_KEYS: dict[str, tuple[Reader, str]] = {
    "driver_version": (_text(r"[0-9.]{1,60}"), "a version such as 550.54.15"),
    "cuda_version": (_text(r"[0-9]{1,3}\.[0-9]{1,2}"), "a version such as 12.4"),
    "driver.old": (_fault(_number(0, 2)), "0 for a new driver, 2 for one before _v3 calls, 1 for one before _v2"),
    "fault.init": (_fault(_number(0, 999)), "the NVML error code of nvmlInit, 0 for none"),
    "fault.slow": (_fault(_number(0, 3_600_000)), "milliseconds, 0 for none"),
    "cuda.slow": (_fault(_number(0, 3_600_000)), "milliseconds that a CUDA context takes, 0 for none"),
    "fault.cuda": (_fault(_number(0, 999)), "the CUDA error code of making a context, 0 for none"),
    "fault.hang": (_fault(_text(r"\w+")), "1 for every call, a part of a call's name, or 0 for none"),
    "fault.middle": (_fault(_text(r"\w{1,80}:[0-9]{1,3}")), "CALL:CODE, or 0 for none"),
}


def checked(machine: dict[str, str], assignments: Iterable[str], uses: Sequence[Use] = ()) -> dict[str, str]:
    """The assignments as they are to be written; the first that makes no sense is an error."""
    changes = dict(_checked_one(machine, assignment) for assignment in assignments)
    changed = machine | changes
    _refuse_equal(changed, "uuid", "UUID", str.lower)
    _refuse_equal(changed, "pci_bus_id", "PCI bus id", _bus)
    for use in uses:
        _refuse_change(machine, changed, use)
    return changes


def _checked_one(machine: dict[str, str], assignment: str) -> tuple[str, str]:
    key, equals, value = assignment.partition("=")
    key = key.strip()
    if not equals:
        raise UsageError(f"{assignment[:SHOWN]!r} sets nothing.", "Write KEY=VALUE, such as gpu.0.utilization=90.")
    read, allowed = _rule(machine, key)
    written = read(value) if value.isprintable() else None  # a control character would drive the reader's terminal
    if written is None:
        raise UsageError(f"{value[:SHOWN]!r} is not a valid value for {key}.", f"It takes {allowed}.")
    return key, written


def _rule(machine: dict[str, str], key: str) -> tuple[Reader, str]:
    match = re.fullmatch(r"gpu\.(0|[1-9][0-9]{0,8})\.(\w+)", key)
    if match and match[2] in GPU_KEYS:
        if int(match[1]) >= gpu_count(machine):
            last = gpu_count(machine) - 1
            raise UnknownDevice(f"There is no simulated GPU {match[1]}.", f"The GPUs are 0 to {last}.")
        return GPU_KEYS[match[2]]
    if key in MACHINE_KEYS:
        return MACHINE_KEYS[key]
    raise UsageError(
        f"A simulated machine has no key {key[:SHOWN]!r}.", "Inside one, `gpulease simulate show` prints every key."
    )


def _bus(text: str) -> str:
    """Without the function's number, and with the domain written in full: what the driver tells apart."""
    domain, _, rest = text.partition(":")
    return f"{domain.zfill(8)}:{rest.partition('.')[0]}".lower()


def _refuse_equal(machine: dict[str, str], key: str, called: str, same: Callable[[str], str]) -> None:
    seen: set[str] = set()
    for index in range(gpu_count(machine)):
        value = machine.get(f"gpu.{index}.{key}", "none")
        if value == "none":
            continue
        if same(value) in seen:
            raise UsageError(f"Two GPUs cannot both have the {called} {value}.", "Give each its own.")
        seen.add(same(value))


def _refuse_change(machine: dict[str, str], changed: dict[str, str], use: Use) -> None:
    """As with a real driver: what a process uses is not taken apart under it."""
    if instance_count(machine, use.gpu) != instance_count(changed, use.gpu):
        raise UsageError(
            f"Process {use.pid} uses GPU {use.gpu}, so its MIG instances cannot change.", "End that process first."
        )


MEBIBYTE = 1024**2
DRIVER_VERSION = "550.54.15"
CUDA_VERSION = "12.4"


class Card(NamedTuple):
    name: str
    memory: int  # MiB
    reserved: int  # MiB that the driver keeps for itself
    power: int  # watts when idle
    power_limit: int  # watts
    temperature: int
    capability: int  # CUDA compute capability, 80 for 8.0
    fan: int | None = None  # percent; None: the card has no fan of its own
    mig: bool = False
    performance_state: int = 8


A100 = Card("NVIDIA A100-SXM4-80GB", 81920, 904, 62, 400, 31, 80, mig=True, performance_state=0)
RTX_4090 = Card("NVIDIA GeForce RTX 4090", 24564, 390, 18, 450, 33, 89, fan=30)
T4 = Card("Tesla T4", 15360, 448, 10, 70, 38, 75)
A6000 = Card("NVIDIA RTX A6000", 49140, 600, 22, 300, 35, 86, fan=30)
H100 = Card("NVIDIA H100 80GB HBM3", 81559, 650, 70, 700, 30, 90, mig=True, performance_state=0)

PROFILES: dict[str, tuple[Card, ...]] = {
    "a100": (A100,),
    "rtx4090": (RTX_4090,),
    "mixed": (A100, RTX_4090, T4, A6000, H100),
}
BUSES = (0x07, 0x0F, 0x47, 0x4E, 0x87, 0x90, 0xB7, 0xBD)
FAULTS = ("driver.old", "fault.init", "fault.slow", "fault.hang", "fault.middle", "cuda.slow", "fault.cuda")
GROUP_SIZES = {"a100": 4, "mixed": 2}  # GPUs near each other; without an entry none are


def new_machine(count: int, profile: str) -> dict[str, str]:
    if not 1 <= count <= MAXIMUM_GPUS:
        raise UsageError(f"A simulated machine cannot have {count} GPUs.", f"Ask for 1 to {MAXIMUM_GPUS} of them.")
    if profile not in PROFILES:
        raise UsageError(f"There is no profile {profile[:80]!r}.", f"The profiles are {', '.join(PROFILES)}.")
    machine = {
        "profile": profile,
        "driver_version": DRIVER_VERSION,
        "cuda_version": CUDA_VERSION,
        "gpu_count": str(count),
        **dict.fromkeys(FAULTS, "0"),
    }
    for index in range(count):
        machine.update(_gpu(profile, index))
    return machine


def _gpu(profile: str, index: int) -> dict[str, str]:
    cards = PROFILES[profile]
    card = cards[index % len(cards)]
    group_size = GROUP_SIZES.get(profile)
    values: dict[str, object] = {
        "name": card.name,
        "uuid": _uuid(profile, index),
        "memory_total": card.memory * MEBIBYTE,
        "memory_used": 0,
        "memory_reserved": card.reserved * MEBIBYTE,
        "utilization": 0,
        "memory_utilization": 0,
        "temperature": card.temperature + index % 4,
        "power": card.power * 1000,
        "power_limit": card.power_limit * 1000,
        "fan": "none" if card.fan is None else card.fan,
        "performance_state": card.performance_state,
        "display_active": 0,
        "pci_bus_id": f"{index // len(BUSES):08X}:{BUSES[index % len(BUSES)]:02X}:00.0",
        "group": "none" if group_size is None else index // group_size,
        "mig": 0 if card.mig else "none",
        "compute_capability": card.capability,
        "throttling": 0,
        "compute_mode": 0,
        "lost": 0,
    }
    return {f"gpu.{index}.{key}": str(value) for key, value in values.items()}


def _uuid(profile: str, index: int) -> str:
    from hashlib import sha256

    digits = sha256(f"gpulease simulated {profile} {index}".encode()).hexdigest()
    return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"
