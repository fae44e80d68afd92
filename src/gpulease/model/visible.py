"""PURE: which devices a program sees: CUDA_VISIBLE_DEVICES read as CUDA itself reads it, and written.

Unset shows all, empty shows none. The kind of the first entry decides: numbers, `GPU-` names or `MIG-`
names, where a name may be cut short as long as it names one device. The first entry that is not valid
ends the list; an entry given twice leaves nothing. A number may have trailing text (`1gpu` is 1), as
strtoul has it.
"""

from __future__ import annotations

from gpulease.errors import BadVisibleDevices, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Protocol

    from gpulease.model.values import Device

    class Shown(Protocol):
        """A device of a sample, of a lease or of a message."""

        @property
        def uuid(self) -> str: ...
        @property
        def label(self) -> str: ...
        @property
        def vendor(self) -> str: ...


NAMES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
NO_DEVICE = "void"  # in NVIDIA_VISIBLE_DEVICES, where nothing at all may be taken for everything
BY = ("uuid", "index")  # how a device is named to a program
VARIABLE = "GPULEASE_VISIBLE"
UNTOLD = ("unknown-", "MIG-unknown-", "AMD-")  # how a probe names a device whose UUID the driver does not tell


def wanted(asked: str | None, environ: Mapping[str, str], said: str = "visible_by") -> str | None:
    """How the requester wants devices named: by a parameter, else by the variable; None if nothing is said."""
    for value, name in ((asked, said), (environ.get(VARIABLE) or None, VARIABLE)):
        if value is not None and value not in BY:
            raise UsageError(f"{name} is {str(value)[:40]!r}.", "Give uuid or index.")
        if value is not None:
            return value
    return None


def variables(devices: Iterable[Shown], by: str | None = None) -> dict[str, str]:
    """The variables that show a program just these devices: UUIDs, since an index means another card elsewhere.

    `by="index"` is for programs that take CUDA_VISIBLE_DEVICES for numbers; anything else is UUIDs. Containers read
    NVIDIA_VISIBLE_DEVICES, which CUDA itself does not read.
    """
    chosen = list(devices)
    amd = [device for device in chosen if device.vendor == "amd"]
    others = [device for device in chosen if device.vendor != "amd"]
    shown = {"ROCR_VISIBLE_DEVICES": _written(amd)} if amd else {}
    if others or not amd:
        shown |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": _written(others, by)}
        shown["NVIDIA_VISIBLE_DEVICES"] = _by_uuid(others) or NO_DEVICE
    return shown


def narrowed(shown: str | None, labels: str, uuids: Sequence[str]) -> str:
    """What shows a part of the devices that `shown` shows, in the same kind of names."""
    numbers = (shown or "").replace(",", "").isdecimal() and labels.replace(",", "").isdecimal()
    return labels if numbers else ",".join(uuids)


def _written(devices: list[Shown], by: str | None = None) -> str:
    """CUDA has no index for a MIG instance, and the two kinds of names cannot be mixed: with one, all are UUIDs."""
    if by == "index" and not any(":" in device.label for device in devices):
        return ",".join(device.label for device in devices)
    return _by_uuid(devices)


def _by_uuid(devices: list[Shown]) -> str:
    """If one UUID is unknown, all are indices, for the two kinds cannot be mixed.

    CUDA has no index for a MIG instance, so it gets the GPU, once, and takes the first instance of it.
    """
    if any(device.uuid.startswith(UNTOLD) for device in devices):
        return ",".join(dict.fromkeys(device.label.partition(":")[0] for device in devices))
    return ",".join(device.uuid for device in devices)


def visible_devices(value: str | None, devices: Sequence[Device]) -> tuple[Device, ...]:
    """The devices that CUDA would enumerate, in its order."""
    if value is None:
        return tuple(devices)
    chosen: list[Device] = []
    for entry in _entries(value):
        device = _find(entry, devices)
        if device is None:
            break
        if device in chosen:
            return ()
        chosen.append(device)
    return tuple(chosen)


def check(value: str | None, devices: Sequence[Device]) -> None:
    """Raise when `value` is set to something and yet shows no device: nobody means that."""
    if value and value.strip() and not visible_devices(value, devices):
        raise BadVisibleDevices(f"CUDA_VISIBLE_DEVICES is {value[:80]!r}, which shows no device of this machine.")


def _entries(value: str) -> list[str]:
    """The entries up to the first one of another kind than the first."""
    entries = [entry.strip() for entry in value.split(",")]
    kind = _kind(entries[0])
    for position, entry in enumerate(entries):
        if _kind(entry) != kind:
            return entries[:position]
    return entries


def _kind(entry: str) -> str:
    return entry[:4] if entry.startswith(("GPU-", "MIG-")) else "number"


def _find(entry: str, devices: Sequence[Device]) -> Device | None:
    if _kind(entry) == "number":
        number = _leading_number(entry)
        # A GPU in MIG mode is visible as its first instance.
        return next((device for device in devices if device.index == number), None)
    matches = [device for device in devices if device.uuid.startswith(entry)]
    exact = [device for device in matches if device.uuid == entry]
    found = exact or matches
    return found[0] if len(found) == 1 else None


def _leading_number(entry: str) -> int:
    """The number an entry starts with; -1 when it starts with none, or with a negative one."""
    digits = entry.removeprefix("+")
    length = next((i for i, letter in enumerate(digits) if letter not in "0123456789"), len(digits))
    return int(digits[:length]) if 0 < length < 10 else -1
