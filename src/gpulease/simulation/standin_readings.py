"""The stand-in's answers about what a device does: memory, processes, load, clocks and single numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gpulease.simulation.standin_view import (
    ANSWERS,
    NOT_AVAILABLE,
    UNSET,
    Answer,
    Code,
    Device,
    Failure,
    View,
    answers,
    first_word,
    put,
    value_of,
)
from gpulease.simulation.state import Use, instance_count


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
