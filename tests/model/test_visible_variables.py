"""The variables that show a program its devices are the same rule for every vendor and every kind of name."""

from __future__ import annotations

import pytest

from gpulease.errors import UnknownDevice, UsageError
from gpulease.model.device_selection import resolve
from gpulease.model.values import Device, Request
from gpulease.model.visible import narrowed, variables, visible_devices, wanted

NVIDIA = (Device(0, "GPU-a", "A100"), Device(1, "GPU-b", "A100"))
AMD = (Device(0, "GPU-1", "MI300", "amd"), Device(1, "GPU-2", "MI300", "amd"))


def cuda(value: str, containers: str | None = None) -> dict[str, str]:
    reply = value if containers is None else containers
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": value, "NVIDIA_VISIBLE_DEVICES": reply}


def test_each_vendor_has_its_own_variable() -> None:
    assert variables(NVIDIA) == cuda("GPU-a,GPU-b")
    assert variables(AMD) == {"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert variables([*NVIDIA, AMD[0]]) == {**cuda("GPU-a,GPU-b"), "ROCR_VISIBLE_DEVICES": "GPU-1"}
    assert variables([]) == cuda("", "void")


def test_an_index_stands_where_the_driver_does_not_tell_a_uuid() -> None:
    hidden = [Device(0, "unknown-0", "A100"), NVIDIA[1]]
    assert variables(hidden) == cuda("0,1")
    assert visible_devices(variables(hidden)["CUDA_VISIBLE_DEVICES"], hidden) == tuple(hidden)
    assert variables([Device(2, "AMD-0000:03:00.0", "MI300", "amd")]) == {"ROCR_VISIBLE_DEVICES": "2"}


def test_a_mig_instance_is_named_by_its_uuid_or_else_by_its_gpu() -> None:
    instances = [Device(0, f"MIG-{number}", "A100", instance=number) for number in (0, 1)]
    assert variables(instances) == cuda("MIG-0,MIG-1")
    assert variables([Device(0, f"MIG-unknown-0-{number}", "A100", instance=number) for number in (0, 1)]) == cuda("0")


def test_by_index_is_for_whole_nvidia_gpus_and_keeps_the_bus_order() -> None:
    assert variables(NVIDIA, "index") == cuda("0,1", "GPU-a,GPU-b")
    assert visible_devices("0,1", NVIDIA) == NVIDIA
    assert variables(AMD, "index") == variables(AMD)
    instance = Device(1, "MIG-0", "A100", instance=0)
    assert variables([NVIDIA[0], instance], "index") == cuda("GPU-a,MIG-0"), "CUDA has no index for it, nor a mixture"


def test_a_part_is_shown_in_the_names_of_the_whole() -> None:
    assert narrowed("0,1", "1", ["GPU-b"]) == "1"
    assert narrowed("GPU-a,GPU-b", "1", ["GPU-b"]) == "GPU-b"
    assert narrowed(None, "1", ["GPU-b"]) == "GPU-b"
    assert narrowed("0", "0:1", ["MIG-1"]) == "MIG-1"


def test_a_parameter_wins_over_the_variable_and_nonsense_is_refused() -> None:
    assert wanted(None, {}) is wanted(None, {"GPULEASE_VISIBLE": ""}) is None
    assert wanted(None, {"GPULEASE_VISIBLE": "index"}) == "index"
    assert wanted("uuid", {"GPULEASE_VISIBLE": "index"}) == "uuid"
    with pytest.raises(UsageError, match="GPULEASE_VISIBLE is 'number'"):
        wanted(None, {"GPULEASE_VISIBLE": "number"})
    with pytest.raises(UsageError):
        wanted("number", {})


def test_devices_of_a_request_are_resolved_to_uuids() -> None:
    request = resolve(Request(2, devices=("0", "GPU-b"), exclude=("1",)), NVIDIA)
    assert request == Request(2, devices=("GPU-a", "GPU-b"), exclude=("GPU-b",))
    with pytest.raises(UnknownDevice):
        resolve(Request(devices=("7",)), NVIDIA)
