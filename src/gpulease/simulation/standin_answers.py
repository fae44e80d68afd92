"""What the pure-Python stand-in answers to each NVML call, as `native/nvmlsim.c` does in C."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpulease.simulation.standin_view import (
    NOT_AVAILABLE,
    UNSET,
    Answer,
    Code,
    Device,
    Failure,
    View,
    device_of,
    first_word,
    put,
    put_text,
    value_of,
)
from gpulease.simulation.state import MAXIMUM_INSTANCES, Use, gpu_count, instance_count

ANSWERS: dict[str, Answer] = {}


def answers(*names: str) -> Callable[[Answer], Answer]:
    def register(answer: Answer) -> Answer:
        ANSWERS.update(dict.fromkeys(names, answer))
        return answer

    return register


def _numbers(key: str, *names: str) -> None:
    def answer(view: View, handle: Any, *rest: Any) -> None:
        put(rest[-1], "I", view.gpu_number(view.begin_gpu(handle), key))

    ANSWERS.update(dict.fromkeys(names, answer))


def _constants(constant: int, *names: str) -> None:
    def answer(view: View, handle: Any, *rest: Any) -> None:
        view.begin_gpu(handle)
        put(rest[-1], "I", constant)

    ANSWERS.update(dict.fromkeys(names, answer))


_numbers("temperature", "nvmlDeviceGetTemperature")
_numbers("fan", "nvmlDeviceGetFanSpeed", "nvmlDeviceGetFanSpeed_v2")
_numbers("power", "nvmlDeviceGetPowerUsage")
_numbers(
    "power_limit",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementDefaultLimit",
)
_numbers("performance_state", "nvmlDeviceGetPerformanceState", "nvmlDeviceGetPowerState")
_numbers("display_active", "nvmlDeviceGetDisplayActive", "nvmlDeviceGetDisplayMode")
_constants(0, "nvmlDeviceGetComputeMode", "nvmlDeviceGetPcieThroughput")
_constants(1, "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetPowerManagementMode")
_constants(4, "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkGeneration")
_constants(16, "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth")


@answers("nvmlSystemGetDriverVersion")
def _driver_version(view: View, text: Any, length: Any) -> None:
    view.begin()
    put_text(text, length, view.machine.get("driver_version", ""))


@answers("nvmlSystemGetNVMLVersion")
def _nvml_version(view: View, text: Any, length: Any) -> None:
    view.begin()
    major = view.machine.get("cuda_version", "0").partition(".")[0]
    put_text(text, length, f"{major}.{view.machine.get('driver_version', '')}")


@answers("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
def _cuda_version(view: View, version: Any) -> None:
    view.begin()
    major, _, minor = view.machine.get("cuda_version", "").partition(".")
    if not major.isdigit():
        raise Failure(Code.NOT_SUPPORTED)
    put(version, "i", 1000 * int(major) + 10 * int(minor or 0))


@answers("nvmlSystemGetProcessName")
def _process_name(view: View, pid: Any, name: Any, length: Any) -> None:
    view.begin()
    try:
        command = Path(f"/proc/{value_of(pid)}/cmdline").read_bytes().partition(b"\0")[0]
    except OSError:
        command = b""
    if not command:
        raise Failure(Code.NOT_FOUND)
    put_text(name, length, command.decode(errors="replace"))


@answers("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
def _count(view: View, count: Any) -> None:
    view.begin()
    put(count, "I", gpu_count(view.machine))


def _give(view: View, device: Device, handle: Any) -> None:
    view.check(device)
    put(handle, "P", device.address)


def _devices(view: View) -> list[Device]:
    gpus = range(gpu_count(view.machine))
    places = ((gpu, place) for gpu in gpus for place in (None, *range(instance_count(view.machine, gpu))))
    return [Device(gpu, place) for gpu, place in places]


@answers("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
def _handle_by_index(view: View, index: Any, handle: Any) -> None:
    view.begin()
    view.wait()
    if value_of(index) >= gpu_count(view.machine):
        raise Failure(Code.INVALID_ARGUMENT)
    _give(view, Device(value_of(index), None), handle)


@answers("nvmlDeviceGetHandleByUUID")
def _handle_by_uuid(view: View, uuid: Any, handle: Any) -> None:
    view.begin()
    view.wait()
    wanted = value_of(uuid).decode().lower()
    found = [device for device in _devices(view) if view.uuid(device).lower() == wanted]
    if not wanted or not found:
        raise Failure(Code.NOT_FOUND)
    _give(view, found[0], handle)


def _bus(text: str) -> tuple[int, int, int] | None:
    parts = text.partition(".")[0].split(":")
    try:
        domain, bus, device = (int(part, 16) for part in (["0", *parts] if len(parts) == 2 else parts))
    except ValueError:
        return None
    return domain, bus, device


@answers("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId")
def _handle_by_bus(view: View, bus_id: Any, handle: Any) -> None:
    view.begin()
    view.wait()
    wanted = _bus(value_of(bus_id).decode())
    if wanted is None:
        raise Failure(Code.INVALID_ARGUMENT)
    for gpu in range(gpu_count(view.machine)):
        if _bus(view.gpu_text(gpu, "pci_bus_id")) == wanted:
            return _give(view, Device(gpu, None), handle)
    raise Failure(Code.NOT_FOUND)


@answers("nvmlDeviceGetIndex")
def _index(view: View, handle: Any, index: Any) -> None:
    device = view.begin_device(handle)
    put(index, "I", device.gpu if device.instance is None else device.instance)


@answers("nvmlDeviceGetMinorNumber")
def _minor(view: View, handle: Any, minor: Any) -> None:
    put(minor, "I", view.begin_gpu(handle))


@answers("nvmlDeviceGetName")
def _name(view: View, handle: Any, text: Any, length: Any) -> None:
    device = view.begin_device(handle)
    name = view.gpu_text(device.gpu, "name")
    if device.instance is not None:
        parts = instance_count(view.machine, device.gpu)
        gibibytes = view.gpu_number(device.gpu, "memory_total") // parts >> 30
        name = f"{name} MIG {MAXIMUM_INSTANCES // parts}g.{gibibytes}gb"
    put_text(text, length, name)


@answers("nvmlDeviceGetUUID")
def _uuid(view: View, handle: Any, text: Any, length: Any) -> None:
    put_text(text, length, view.uuid(view.begin_device(handle)))


@answers("nvmlDeviceGetSerial")
def _serial(view: View, handle: Any, text: Any, length: Any) -> None:
    put_text(text, length, f"13200{view.begin_gpu(handle):08d}")


def _pci(view: View, handle: Any) -> tuple[bytes, tuple[int, int, int], bytes]:
    bus = _bus(view.gpu_text(view.begin_gpu(handle), "pci_bus_id"))
    if bus is None:
        raise Failure(Code.NOT_SUPPORTED)
    domain, number, device = bus
    rest = f"{number:02X}:{device:02X}.0"
    return f"{domain & 0xFFFF:04X}:{rest}".encode(), bus, f"{domain:08X}:{rest}".encode()


@answers("nvmlDeviceGetPciInfo_v3")
def _pci_v3(view: View, handle: Any, info: Any) -> None:
    legacy, bus, bus_id = _pci(view, handle)
    put(info, "16s5I32s", legacy, *bus, 0, 0, bus_id)


@answers("nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
def _pci_v2(view: View, handle: Any, info: Any) -> None:
    legacy, bus, _ = _pci(view, handle)
    put(info, "16s9I", legacy, *bus, 0, 0, 0, 0, 0, 0)


@answers("nvmlDeviceGetCudaComputeCapability")
def _capability(view: View, handle: Any, major: Any, minor: Any) -> None:
    capability = view.gpu_number(view.begin_device(handle).gpu, "compute_capability")
    put(major, "i", capability // 10)
    put(minor, "i", capability % 10)


def _is_near(view: View, one: Any, other: Any) -> bool:
    gpu = view.begin_gpu(one)
    second = device_of(other)
    if second is None:
        raise Failure(Code.INVALID_ARGUMENT)
    view.check(second)
    group = view.gpu_text(gpu, "group")
    return bool(group) and group == view.gpu_text(second.gpu, "group")


@answers("nvmlDeviceGetTopologyCommonAncestor")
def _ancestor(view: View, one: Any, other: Any, level: Any) -> None:
    put(level, "I", 10 if _is_near(view, one, other) else 50)


@answers("nvmlDeviceGetP2PStatus")
def _peer_status(view: View, one: Any, other: Any, _capability: Any, status: Any) -> None:
    put(status, "I", 0 if _is_near(view, one, other) else 5)


def _memory(view: View, device: Device) -> tuple[int, int, int, int]:
    """Total, reserved, free, used."""
    parts = 1 if device.instance is None else instance_count(view.machine, device.gpu)
    total = view.gpu_number(device.gpu, "memory_total") // parts
    used = view.gpu_number(device.gpu, "memory_used") // parts
    try:
        reserved = min(view.gpu_number(device.gpu, "memory_reserved") // parts, total)
    except Failure:
        reserved = 0
    used += sum(use.memory or 0 for use in view.uses(device))
    used = min(used, total - reserved)
    return total, reserved, total - reserved - used, used


@answers("nvmlDeviceGetMemoryInfo_v2")
def _memory_v2(view: View, handle: Any, memory: Any) -> None:
    device = view.begin_device(handle)
    view.refuse_before(3)
    if first_word(memory) != 0x02000028:
        raise Failure(Code.ARGUMENT_VERSION_MISMATCH)
    put(memory, "IQQQQ", 0x02000028, *_memory(view, device))


@answers("nvmlDeviceGetMemoryInfo")
def _memory_v1(view: View, handle: Any, memory: Any) -> None:
    total, reserved, free, used = _memory(view, view.begin_device(handle))
    put(memory, "QQQ", total, free, used + reserved)


@answers("nvmlDeviceGetBAR1MemoryInfo")
def _bar1_memory(view: View, handle: Any, memory: Any) -> None:
    view.begin_device(handle)
    put(memory, "QQQ", 256 << 20, 255 << 20, 1 << 20)


def _fill(count: Any, array: Any, layout: str, rows: Sequence[tuple[int, ...]]) -> None:
    room = value_of(count) if array is not None else 0
    put(count, "I", len(rows))
    if len(rows) > room:
        raise Failure(Code.INSUFFICIENT_SIZE)
    if rows:
        put(array, layout * len(rows), *(value for row in rows for value in row))


def _running(version: int, graphics: bool) -> Answer:
    def answer(view: View, handle: Any, count: Any, array: Any) -> None:
        device = view.begin_device(handle)
        view.refuse_before(version)
        instances = instance_count(view.machine, device.gpu)
        found = [_process(use, instances) for use in view.uses(device) if use.graphics == graphics]
        if version == 1:
            return _fill(count, array, "IQ", [row[:2] for row in found])
        return _fill(count, array, "IQII", found)

    return answer


def _process(use: Use, instances: int) -> tuple[int, int, int, int]:
    memory = NOT_AVAILABLE if use.memory is None else use.memory
    if not instances or use.instance is None:
        return use.pid, memory, UNSET, UNSET
    return use.pid, memory, use.instance + 1, 0


for _version, _suffix in ((1, ""), (2, "_v2"), (3, "_v3")):
    ANSWERS[f"nvmlDeviceGetComputeRunningProcesses{_suffix}"] = _running(_version, False)
    ANSWERS[f"nvmlDeviceGetGraphicsRunningProcesses{_suffix}"] = _running(_version, True)


@answers("nvmlDeviceGetProcessUtilization")
def _process_utilization(view: View, handle: Any, samples: Any, count: Any, _since: Any) -> None:
    gpu = view.begin_gpu(handle)
    utilization, memory = _rates(view, gpu)
    uses = view.uses(Device(gpu, None))
    if not uses:
        put(count, "I", 0)
        raise Failure(Code.NOT_FOUND)
    now = time.time_ns() // 1000
    rows = [(use.pid, now, utilization // len(uses), memory // len(uses), 0, 0) for use in uses]
    _fill(count, samples, "IQIIII", rows)


def _rates(view: View, gpu: int) -> tuple[int, int]:
    if instance_count(view.machine, gpu):
        raise Failure(Code.NOT_SUPPORTED)
    utilization = view.gpu_number(gpu, "utilization")
    try:
        return utilization, view.gpu_number(gpu, "memory_utilization")
    except Failure:
        return utilization, 0


@answers("nvmlDeviceGetUtilizationRates")
def _utilization(view: View, handle: Any, rates: Any) -> None:
    put(rates, "II", *_rates(view, view.begin_gpu(handle)))


@answers("nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization")
def _engine(view: View, handle: Any, percent: Any, period: Any) -> None:
    if instance_count(view.machine, view.begin_gpu(handle)):
        raise Failure(Code.NOT_SUPPORTED)
    put(percent, "I", 0)
    put(period, "I", 167000)


@answers("nvmlDeviceGetTemperatureV")
def _temperature(view: View, handle: Any, temperature: Any) -> None:
    gpu = view.begin_gpu(handle)
    view.refuse_before(3)
    if first_word(temperature) != 0x0100000C:
        raise Failure(Code.ARGUMENT_VERSION_MISMATCH)
    put(temperature, "IIi", 0x0100000C, 0, view.gpu_number(gpu, "temperature"))


def _clocks(memory: int, other: int) -> Answer:
    def answer(view: View, handle: Any, kind: Any, clock: Any) -> None:
        if value_of(kind) > 3:
            raise Failure(Code.INVALID_ARGUMENT)
        view.begin_gpu(handle)
        put(clock, "I", memory if value_of(kind) == 2 else other)

    return answer


ANSWERS["nvmlDeviceGetClockInfo"] = _clocks(1215, 210)
ANSWERS["nvmlDeviceGetMaxClockInfo"] = _clocks(1215, 1410)


@answers("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
def _clock_reasons(view: View, handle: Any, reasons: Any) -> None:
    gpu = view.begin_gpu(handle)
    busy = view.gpu_text(gpu, "utilization") not in ("", "0")
    put(reasons, "Q", 0 if busy else 1)


@answers("nvmlDeviceGetMigMode")
def _mig_mode(view: View, handle: Any, current: Any, pending: Any) -> None:
    mode = int(view.gpu_number(view.begin_gpu(handle), "mig") > 0)
    put(current, "I", mode)
    put(pending, "I", mode)


@answers("nvmlDeviceGetMaxMigDeviceCount")
def _mig_maximum(view: View, handle: Any, count: Any) -> None:
    put(count, "I", MAXIMUM_INSTANCES if view.gpu_text(view.begin_gpu(handle), "mig") else 0)


@answers("nvmlDeviceGetMigDeviceHandleByIndex")
def _mig_handle(view: View, handle: Any, index: Any, instance: Any) -> None:
    gpu = view.begin_gpu(handle)
    view.gpu_number(gpu, "mig")
    if value_of(index) >= instance_count(view.machine, gpu):
        raise Failure(Code.NOT_FOUND)
    put(instance, "P", Device(gpu, value_of(index)).address)


@answers("nvmlDeviceIsMigDeviceHandle")
def _is_mig(view: View, handle: Any, answer: Any) -> None:
    put(answer, "I", int(view.begin_device(handle).instance is not None))


def _instance(view: View, handle: Any, otherwise: Code = Code.NOT_SUPPORTED) -> tuple[int, int]:
    device = view.begin_device(handle)
    if device.instance is None:
        raise Failure(otherwise)
    return device.gpu, device.instance


@answers("nvmlDeviceGetGpuInstanceId")
def _gpu_instance_id(view: View, handle: Any, number: Any) -> None:
    put(number, "I", _instance(view, handle)[1] + 1)


@answers("nvmlDeviceGetComputeInstanceId")
def _compute_instance_id(view: View, handle: Any, number: Any) -> None:
    _instance(view, handle)
    put(number, "I", 0)


@answers("nvmlDeviceGetDeviceHandleFromMigDeviceHandle")
def _mig_parent(view: View, handle: Any, parent: Any) -> None:
    put(parent, "P", Device(_instance(view, handle, Code.INVALID_ARGUMENT)[0], None).address)


@answers("nvmlDeviceGetAttributes_v2")
def _attributes(view: View, handle: Any, attributes: Any) -> None:
    gpu, _ = _instance(view, handle)
    parts = instance_count(view.machine, gpu)
    slices = MAXIMUM_INSTANCES // parts
    megabytes = view.gpu_number(gpu, "memory_total") // parts >> 20
    put(attributes, "8IQ", 14 * slices, 1, 0, 0, 0, 0, slices, slices, megabytes)
