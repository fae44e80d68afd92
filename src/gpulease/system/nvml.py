"""NVIDIA devices through nvidia-ml-py: initialised once, handles and fixed facts kept; also of older drivers.

A value that the driver refuses is None. A GPU that fell off the bus is marked lost and does not
disturb the others. Only a failure of the whole library raises.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pynvml

from gpulease.errors import DriverError, NoDevices, Unavailable
from gpulease.model.devices import throttle_reasons
from gpulease.model.values import Device, Process, Sample
from gpulease.system.probe import facts, groups, pci_root

NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
MOST = 1024


class OldProcess(NamedTuple):
    pid: int
    usedGpuMemory: int | None  # spelled as the bindings spell it


class _ProcessInfo(ctypes.Structure):
    _fields_ = (("pid", ctypes.c_uint), ("usedGpuMemory", ctypes.c_ulonglong))


def running(what: str, handle: Any) -> list[OldProcess]:
    """Processes of kind `what`, Compute or Graphics. The symbol without a suffix is version 1."""
    call = getattr(pynvml.nvmlLib, f"nvmlDeviceGet{what}RunningProcesses", None)
    if call is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    count = ctypes.c_uint(MOST)
    entries = (_ProcessInfo * MOST)()
    code = call(handle, ctypes.byref(count), entries)
    if code:
        raise pynvml.NVMLError(code)
    return [_entry(entries[number]) for number in range(count.value)]


def _entry(info: _ProcessInfo) -> OldProcess:
    memory = info.usedGpuMemory
    return OldProcess(info.pid, None if memory == NOT_AVAILABLE else memory)


# -------------------------------------------------------------------- the probe

LOST = {15: "the GPU is lost: it fell off the bus", 16: "the GPU must be reset before it can be used"}
NOT_HERE = {
    12: "No NVIDIA driver library (libnvidia-ml.so.1) is installed here.",
    9: "The NVIDIA driver is not loaded.",
}
LIMIT_KEPT = 10.0  # seconds that a power limit serves: asking for power is slow, and nobody changes it often
WHOLE_GPU = 0xFFFFFFFF  # the instance id of a process on a GPU without MIG


class _Lost(Exception):
    """Left the driver while a device was being read."""


class NvmlProbe:
    """`simulated` only marks the samples; the calls are the same for a real and a simulated library."""

    def __init__(self, simulated: bool = False) -> None:
        self._simulated = simulated
        self._ready = False
        self._driver: str | None = None
        self._handles: dict[int, Any] = {}
        self._groups: list[str | None] | None = None
        self._facts: dict[str, Device] = {}  # of a GPU by its number, of a MIG instance by its UUID
        self._limits: dict[int, tuple[float, int | None]] = {}  # by the number of the GPU: until when, milliwatts
        self._places: dict[str, tuple[Device, Any, Any]] = {}  # by UUID: facts, handle, its GPU's handle

    def snapshot(self) -> Sample:
        try:
            self._begin()
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise _unavailable(error) from None
        if not count:
            raise NoDevices("The NVIDIA driver is loaded, but it finds no GPU.")
        if self._groups is None:
            self._groups = groups(count, self._distance)
        devices = [device for index in range(count) for device in self._gpu(index)]
        return Sample(time.time(), tuple(devices), self._simulated, self._driver)

    def occupancy(self, uuids: Sequence[str]) -> list[Device]:
        """Memory, processes and load only, of devices that a snapshot has shown: what a grant depends on."""
        return [self._occupied(*self._places[uuid]) for uuid in uuids if uuid in self._places]

    def _occupied(self, facts: Device, handle: Any, gpu: Any) -> Device:
        try:
            total, used = _memory(handle)
            users = _instance_processes(handle, gpu) if facts.instance is not None else self._processes(facts, handle)
        except _Lost as lost:
            return self._lost(facts.index, str(lost))._replace(uuid=facts.uuid)
        load = None if facts.instance is not None else _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
        busy = None if load is None else load.gpu
        return facts._replace(memory_total=total, memory_used=used, processes=users, utilization=busy)

    def _begin(self) -> None:
        if self._ready:
            return
        pynvml.nvmlInit()
        self._ready = True
        self._driver = _text(_optional(pynvml.nvmlSystemGetDriverVersion))

    def _gpu(self, index: int) -> list[Device]:
        """The GPU number `index`, or its MIG instances."""
        try:
            handle = self._handle(index)
            mig_mode = _optional(_mig_mode, handle)
            instances = _mig_handles(handle) if mig_mode else []
            if not instances:
                return [self._whole(index, handle, mig_mode)]
            return [self._instance(index, number, part, handle) for number, part in instances]
        except _Lost as lost:
            return [self._lost(index, str(lost))]

    def _handle(self, index: int) -> Any:
        handle = self._handles.get(index)
        if handle is None:
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            except pynvml.NVMLError as error:
                raise _Lost(LOST.get(error.value, f"the driver does not give access to it: {error}")) from None
            self._handles[index] = handle
        return handle

    def _distance(self, one: int, other: int) -> int | None:
        try:
            level = _optional(pynvml.nvmlDeviceGetTopologyCommonAncestor, self._handle(one), self._handle(other))
        except _Lost:
            return None
        return None if level is None else int(level)

    def _group(self, index: int) -> str | None:
        return self._groups[index] if self._groups and index < len(self._groups) else None

    def _lost(self, index: int, why: str) -> Device:
        self._handles.pop(index, None)  # after a reset the GPU comes back under a new handle
        known = self._facts.get(str(index)) or Device(index, f"lost-{index}", "unknown GPU")
        return known._replace(lost=why, processes=None)

    def _whole(self, index: int, handle: Any, mig_mode: bool | None) -> Device:
        facts = self._facts.get(str(index))
        if facts is None:
            facts = self._facts[str(index)] = _facts_of(index, handle, self._group(index))
        self._places[facts.uuid] = (facts, handle, handle)
        limit = self._power_limit(index, handle)
        return _reading(handle, facts)._replace(
            power_limit=limit, mig_mode=mig_mode, processes=self._processes(facts, handle)
        )

    def _power_limit(self, index: int, handle: Any) -> int | None:
        now = time.monotonic()
        until, limit = self._limits.get(index, (now, None))
        if until <= now:
            limit = _optional(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            self._limits[index] = (now + LIMIT_KEPT, limit)
        return limit

    def _processes(self, facts: Device, handle: Any) -> tuple[Process, ...] | None:
        """The only GPU of a machine with a screen is handed out all the same: what draws there is no use."""
        return _processes(handle, drawing_wins=bool(facts.display_active) and len(self._handles) == 1)

    def _instance(self, index: int, number: int, handle: Any, parent: Any) -> Device:
        """A MIG instance. Heat, power and bus are its GPU's; load is what the driver does not tell."""
        uuid = _text(_optional(pynvml.nvmlDeviceGetUUID, handle)) or f"MIG-unknown-{index}-{number}"
        facts = self._facts.get(uuid)
        if facts is None:
            facts = self._facts[uuid] = _facts_of(index, parent, self._group(index))._replace(
                uuid=uuid, instance=number, name=_text(_optional(pynvml.nvmlDeviceGetName, handle)) or "MIG"
            )
        if uuid.startswith("MIG-unknown"):
            facts = facts._replace(lost="the driver does not report its UUID, and it has no other name")
        self._places[uuid] = (facts, handle, parent)
        total, used = _memory(handle)
        return _reading(parent, facts)._replace(
            power_limit=self._power_limit(index, parent),
            memory_total=total,
            memory_used=used,
            utilization=None,
            memory_utilization=None,
            mig_mode=True,
            processes=_instance_processes(handle, parent),
        )


def _facts_of(index: int, handle: Any, group: str | None) -> Device:
    bus_id = _optional(_bus_id, handle)
    return Device(
        index=index,
        uuid=_text(_optional(pynvml.nvmlDeviceGetUUID, handle)) or f"unknown-{index}",
        name=_text(_optional(pynvml.nvmlDeviceGetName, handle)) or "NVIDIA GPU",
        pci_bus_id=bus_id,
        group=group or pci_root(bus_id),
        display_active=_optional(_display_active, handle),
    )


def _reading(handle: Any, facts: Device) -> Device:
    total, used = _memory(handle)
    load = _optional(pynvml.nvmlDeviceGetUtilizationRates, handle)
    state = _optional(pynvml.nvmlDeviceGetPerformanceState, handle)
    return facts._replace(
        memory_total=total,
        memory_used=used,
        utilization=None if load is None else load.gpu,
        memory_utilization=None if load is None else load.memory,
        temperature=_optional(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        power=_optional(pynvml.nvmlDeviceGetPowerUsage, handle),
        performance_state=state if state is not None and state < 32 else None,
        fan_speed=_optional(pynvml.nvmlDeviceGetFanSpeed, handle),
        throttling=throttle_reasons(_optional(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)),
    )


def _memory(handle: Any) -> tuple[int | None, int | None]:
    """Total and used. Version 2 first: version 1 counts the driver's own reserve as used."""
    info = _optional(_memory_version_2, handle)
    if info is None:
        info = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    return (None, None) if info is None else (info.total, info.used)


def _memory_version_2(handle: Any) -> Any:
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
    except TypeError:
        # nvitop, loaded in the same process, puts a function in its place that knows no version.
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _processes(handle: Any, drawing_wins: bool = False) -> tuple[Process, ...] | None:
    """Who computes and who draws. A process that does both computes, unless `drawing_wins`."""
    compute = _running("Compute", handle)
    if compute is None:
        return None
    lists = [(False, compute), (True, _running("Graphics", handle) or [])]
    found: dict[int, tuple[Any, bool]] = {}
    for graphics, entries in reversed(lists) if drawing_wins else lists:
        for entry in entries:
            found.setdefault(entry.pid, (entry, graphics))
    return _with_facts(found)


def _instance_processes(handle: Any, parent: Any) -> tuple[Process, ...] | None:
    """Ask the instance; where the driver refuses that, pick its processes out of its GPU's."""
    own = _processes(handle)
    if own is not None:
        return own
    number = _optional(pynvml.nvmlDeviceGetGpuInstanceId, handle)
    entries = _running("Compute", parent)
    if entries is None or number is None:
        return None
    mine = (entry for entry in entries if getattr(entry, "gpuInstanceId", WHOLE_GPU) == number)
    return _with_facts({entry.pid: (entry, False) for entry in mine})


def _running(what: str, handle: Any) -> list[Any] | None:
    for version in ("_v3", "_v2"):
        call = getattr(pynvml, f"nvmlDeviceGet{what}RunningProcesses{version}", None)
        entries: list[Any] | None = None if call is None else _optional(call, handle)
        if entries is not None:
            return entries

    oldest: list[Any] | None = _optional(running, what, handle)
    return oldest


def _with_facts(found: dict[int, tuple[Any, bool]]) -> tuple[Process, ...]:
    """By pid: what the driver tells of each process, and whether it draws."""
    known = facts(found)
    return tuple(Process(pid, *known[pid], found[pid][0].usedGpuMemory, found[pid][1]) for pid in sorted(found))


def _mig_mode(handle: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE)


def _mig_handles(handle: Any) -> list[tuple[int, Any]]:
    count = _optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = ((number, _optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)) for number in range(count))
    return [(number, part) for number, part in found if part is not None]


def _bus_id(handle: Any) -> str | None:
    return _text(pynvml.nvmlDeviceGetPciInfo(handle).busId)


def _display_active(handle: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetDisplayActive(handle))


def _optional(call: Callable[..., Any], *arguments: Any) -> Any:
    """What `call` answers, None when the driver refuses that value, _Lost when the GPU is gone."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise _Lost(LOST[error.value]) from None
        if error.value == pynvml.NVML_ERROR_UNINITIALIZED:
            raise _unavailable(error) from None
        return None
    except pynvml.NVMLLibraryMismatchError:
        return None


def _text(value: Any) -> str | None:
    """Bindings up to 11.495 answer in bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else None


def _unavailable(error: Any) -> Unavailable:
    if error.value in NOT_HERE:
        return NoDevices(NOT_HERE[error.value])
    if error.value == 18:
        return DriverError(
            "The NVIDIA driver and its library have different versions.",
            "Reboot, or reload the driver: it was updated while it was running.",
        )
    if error.value == 4:
        return DriverError(
            "The NVIDIA driver refuses access to this user.",
            "Ask for access to /dev/nvidia*, often by joining the group `video` or `render`.",
        )
    return DriverError(f"The NVIDIA driver answers with an error: {error}.")
