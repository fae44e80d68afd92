"""The stand-in's answers about MIG instances."""

from __future__ import annotations

from typing import Any

from gpulease.simulation.standin_view import Code, Device, Failure, View, answers, put, value_of
from gpulease.simulation.state import MAXIMUM_INSTANCES, instance_count


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
