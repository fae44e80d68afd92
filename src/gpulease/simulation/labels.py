"""Which simulated devices a CUDA_VISIBLE_DEVICES names: pure, from the machine's keys to labels."""

from __future__ import annotations

from gpulease.errors import UnknownDevice
from gpulease.simulation.standin_view import instance_uuid
from gpulease.simulation.state import gpu_count, instance_count


def labels_of(machine: dict[str, str], visible: str) -> list[str]:
    """Each entry, an index, a UUID or the beginning of one, as a label such as `0` or `0:1`."""
    labels = _labels_by_uuid(machine)
    return [_label(labels, entry.strip()) for entry in visible.split(",") if entry.strip()]


def _labels_by_uuid(machine: dict[str, str]) -> dict[str, str]:
    labels = {}
    for gpu in range(gpu_count(machine)):
        uuid = machine.get(f"gpu.{gpu}.uuid", "")
        labels[uuid.lower()] = str(gpu)
        for instance in range(instance_count(machine, gpu)):
            labels[instance_uuid(uuid, instance).lower()] = f"{gpu}:{instance}"
    return labels


def _label(labels: dict[str, str], entry: str) -> str:
    found = [label for uuid, label in labels.items() if entry == label or uuid.startswith(entry.lower())]
    if len(found) != 1:
        raise UnknownDevice(f"CUDA_VISIBLE_DEVICES names {entry!r}, which is no one simulated device.")
    return found[0]
