"""Which simulated devices somebody names: pure, from the machine's keys to labels such as `0` or `0:1`."""

from __future__ import annotations

from gpulease.errors import UnknownDevice, UsageError
from gpulease.model.quantities import format_bytes
from gpulease.simulator.state import gpu_count, instance_count, is_number

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
