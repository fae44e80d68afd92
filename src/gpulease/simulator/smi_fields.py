"""The fields that our nvidia-smi knows: how each is read, and its unit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pynvml

from gpulease.simulator.output import printable

MEBIBYTE = 1024**2
NOT_AVAILABLE = "[N/A]"


class SmiField(NamedTuple):
    read: Callable[[Any], Any]
    unit: str = ""


class SmiProcess(NamedTuple):
    handle: Any
    pid: int
    memory: int | None


def text(field: SmiField, row: Any) -> str:
    """The value as nvidia-smi has it; what the driver does not support is [N/A], a lost GPU says so."""
    try:
        return printable(str(field.read(row)))
    except pynvml.NVMLError as error:
        return "[GPU is lost]" if error.value == pynvml.NVML_ERROR_GPU_IS_LOST else NOT_AVAILABLE
    except UnicodeDecodeError:  # the command of a process may have any name
        return NOT_AVAILABLE


def shown(field: SmiField, row: Any, units: bool) -> str:
    value = text(field, row)
    return f"{value} {field.unit}" if units and field.unit and not value.startswith("[") else value


def heading(name: str, field: SmiField, units: bool) -> str:
    return f"{name} [{field.unit}]" if field.unit and units else name


def processes(handle: Any) -> list[SmiProcess]:
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except pynvml.NVMLError:
        return []
    return [SmiProcess(handle, process.pid, process.usedGpuMemory) for process in found]


def instances(handle: Any) -> list[Any]:
    found = []
    try:
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            found.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index))
    except pynvml.NVMLError:
        pass
    return found


def cuda_version() -> str:
    version = pynvml.nvmlSystemGetCudaDriverVersion()
    return f"{version // 1000}.{version % 1000 // 10}"


def _memory(part: str) -> Callable[[Any], int]:
    def read(handle: Any) -> int:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError_FunctionNotFound:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return int(getattr(memory, part)) // MEBIBYTE

    return read


def _bus_id(handle: Any) -> str:
    bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    return bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)


def _watts(read: Callable[[Any], int]) -> Callable[[Any], str]:
    return lambda handle: f"{read(handle) / 1000:.2f}"


def _enabled(read: Callable[[Any], int]) -> Callable[[Any], str]:
    return lambda handle: "Enabled" if read(handle) else "Disabled"


def _process_memory(process: SmiProcess) -> str | int:
    return NOT_AVAILABLE if process.memory is None else process.memory // MEBIBYTE


def _temperature(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))


_INDEX = SmiField(pynvml.nvmlDeviceGetIndex)
_UUID = SmiField(pynvml.nvmlDeviceGetUUID)
_NAME = SmiField(pynvml.nvmlDeviceGetName)
_BUS_ID = SmiField(_bus_id)

GPU: dict[str, SmiField] = {
    "timestamp": SmiField(lambda _: time.strftime("%Y/%m/%d %H:%M:%S.000")),
    "driver_version": SmiField(lambda _: pynvml.nvmlSystemGetDriverVersion()),
    "count": SmiField(lambda _: pynvml.nvmlDeviceGetCount()),
    "index": _INDEX,
    "name": _NAME,
    "gpu_name": _NAME,
    "uuid": _UUID,
    "gpu_uuid": _UUID,
    "serial": SmiField(pynvml.nvmlDeviceGetSerial),
    "pci.bus_id": _BUS_ID,
    "gpu_bus_id": _BUS_ID,
    "display_mode": SmiField(_enabled(pynvml.nvmlDeviceGetDisplayMode)),
    "display_active": SmiField(_enabled(pynvml.nvmlDeviceGetDisplayActive)),
    "persistence_mode": SmiField(_enabled(pynvml.nvmlDeviceGetPersistenceMode)),
    "mig.mode.current": SmiField(_enabled(lambda handle: pynvml.nvmlDeviceGetMigMode(handle)[0])),
    "compute_mode": SmiField(lambda handle: "Default" if pynvml.nvmlDeviceGetComputeMode(handle) == 0 else "Other"),
    "compute_cap": SmiField(lambda handle: "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))),
    "fan.speed": SmiField(pynvml.nvmlDeviceGetFanSpeed, "%"),
    "pstate": SmiField(lambda handle: f"P{pynvml.nvmlDeviceGetPerformanceState(handle)}"),
    "memory.total": SmiField(_memory("total"), "MiB"),
    "memory.reserved": SmiField(_memory("reserved"), "MiB"),
    "memory.used": SmiField(_memory("used"), "MiB"),
    "memory.free": SmiField(_memory("free"), "MiB"),
    "utilization.gpu": SmiField(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, "%"),
    "utilization.memory": SmiField(lambda handle: pynvml.nvmlDeviceGetUtilizationRates(handle).memory, "%"),
    "temperature.gpu": SmiField(_temperature),
    "power.draw": SmiField(_watts(pynvml.nvmlDeviceGetPowerUsage), "W"),
    "power.limit": SmiField(_watts(pynvml.nvmlDeviceGetPowerManagementLimit), "W"),
    "enforced.power.limit": SmiField(_watts(pynvml.nvmlDeviceGetEnforcedPowerLimit), "W"),
}

PROCESS: dict[str, SmiField] = {
    "gpu": SmiField(lambda process: pynvml.nvmlDeviceGetIndex(process.handle)),
    "pid": SmiField(lambda process: process.pid),
    "name": SmiField(lambda process: pynvml.nvmlSystemGetProcessName(process.pid)),
    "process_name": SmiField(lambda process: pynvml.nvmlSystemGetProcessName(process.pid)),
    "used_memory": SmiField(_process_memory, "MiB"),
    "used_gpu_memory": SmiField(_process_memory, "MiB"),
    "gpu_name": SmiField(lambda process: pynvml.nvmlDeviceGetName(process.handle)),
    "gpu_uuid": SmiField(lambda process: pynvml.nvmlDeviceGetUUID(process.handle)),
    "gpu_serial": SmiField(lambda process: pynvml.nvmlDeviceGetSerial(process.handle)),
    "gpu_bus_id": SmiField(lambda process: _bus_id(process.handle)),
}

# The sections of `nvidia-smi -q`: label and field.
QUERY: dict[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("Product Name", "name"),
        ("Display Mode", "display_mode"),
        ("Display Active", "display_active"),
        ("Persistence Mode", "persistence_mode"),
        ("Serial Number", "serial"),
        ("GPU UUID", "uuid"),
        ("Fan Speed", "fan.speed"),
        ("Performance State", "pstate"),
        ("Compute Mode", "compute_mode"),
    ),
    "MIG Mode": (("Current", "mig.mode.current"),),
    "PCI": (("Bus Id", "pci.bus_id"),),
    "FB Memory Usage": (
        ("Total", "memory.total"),
        ("Reserved", "memory.reserved"),
        ("Used", "memory.used"),
        ("Free", "memory.free"),
    ),
    "Utilization": (("Gpu", "utilization.gpu"), ("Memory", "utilization.memory")),
    "Temperature": (("GPU Current Temp", "temperature.gpu"),),
    "GPU Power Readings": (("Power Draw", "power.draw"), ("Current Power Limit", "power.limit")),
}
QUERY_UNITS = {"temperature.gpu": "C"}  # which the csv has without
QUERY_PROCESS = (("Process ID", "pid"), ("Name", "name"), ("Used GPU Memory", "used_memory"))
