"""The stand-in's answers about the system, and about which devices there are and who each one is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpulease.simulation.standin_view import Code, Device, Failure, View, answers, device_of, put, put_text, value_of
from gpulease.simulation.state import MAXIMUM_INSTANCES, gpu_count, instance_count


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
    if not major.isdecimal():
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
