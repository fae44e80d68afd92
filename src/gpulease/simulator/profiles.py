"""What a new simulated machine looks like: the cards of each profile, idle.

Figures are those that real cards of the name report when idle; nothing is random, so that a
machine made twice is the same machine.
"""

from __future__ import annotations

from typing import NamedTuple

from gpulease.errors import UsageError
from gpulease.simulator.state import MAXIMUM_GPUS

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
