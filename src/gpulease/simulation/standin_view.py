"""What the answers of the pure-Python stand-in are made of: handles, faults, pointers.

An answer is a function of a View (the machine as this call sees it) and of the call's own ctypes
arguments. It writes through the pointers among them, or raises Failure with NVML's code.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from gpulease.simulation.labels import instance_uuid
from gpulease.simulation.state import (
    MAXIMUM_GPUS,
    MAXIMUM_INSTANCES,
    Use,
    gpu_count,
    instance_count,
    is_number,
    live_uses,
)

Answer = Callable[..., None]
ANSWERS: dict[str, Answer] = {}  # by the name of the call; filled by the modules that answer
UNSET = 0xFFFFFFFF
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
ABSENT = dict.fromkeys(("memory_used", "memory_reserved", "utilization", "memory_utilization"), 0)


def answers(*names: str) -> Callable[[Answer], Answer]:
    def register(answer: Answer) -> Answer:
        ANSWERS.update(dict.fromkeys(names, answer))
        return answer

    return register


class Code(IntEnum):
    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    ARGUMENT_VERSION_MISMATCH = 25


class Failure(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = int(code)


# A handle is an address in this block: one word for each GPU and for each of its MIG instances.
_HANDLES = (ctypes.c_uint64 * (MAXIMUM_GPUS * (1 + MAXIMUM_INSTANCES)))()
_FIRST = ctypes.addressof(_HANDLES)


class Device(NamedTuple):
    gpu: int
    instance: int | None

    @property
    def address(self) -> int:
        instance = -1 if self.instance is None else self.instance
        return _FIRST + 8 * (self.gpu * (1 + MAXIMUM_INSTANCES) + 1 + instance)


def device_of(handle: Any) -> Device | None:
    address = handle if isinstance(handle, int) else ctypes.cast(handle, ctypes.c_void_p).value or 0
    number, rest = divmod(address - _FIRST, 8)
    if rest or not 0 <= number < len(_HANDLES):
        return None
    gpu, place = divmod(number, 1 + MAXIMUM_INSTANCES)
    return Device(gpu, place - 1 if place else None)


class View(NamedTuple):
    """The machine as one call sees it."""

    machine: dict[str, str]
    directory: Path
    function: str

    def hangs(self) -> bool:
        hang = self.machine.get("fault.hang", "")
        return hang not in ("", "0", "none") and (hang == "1" or hang in self.function)

    def begin(self) -> None:
        name, colon, code = self.machine.get("fault.middle", "").rpartition(":")
        if colon and is_number(code) and name in self.function:
            raise Failure(int(code))

    def begin_device(self, handle: Any) -> Device:
        self.begin()
        self.wait()
        device = device_of(handle)
        if device is None:
            raise Failure(Code.INVALID_ARGUMENT)
        self.check(device)
        return device

    def begin_gpu(self, handle: Any) -> int:
        """For what a MIG instance does not answer."""
        device = self.begin_device(handle)
        if device.instance is not None:
            raise Failure(Code.NOT_SUPPORTED)
        return device.gpu

    def wait(self) -> None:
        if milliseconds := self.machine_number("fault.slow"):
            time.sleep(milliseconds / 1000)

    def check(self, device: Device) -> None:
        if device.gpu >= gpu_count(self.machine) or self.gpu_text(device.gpu, "lost") not in ("", "0"):
            raise Failure(Code.GPU_IS_LOST)
        if device.instance is not None and device.instance >= instance_count(self.machine, device.gpu):
            raise Failure(Code.NOT_FOUND)

    def refuse_before(self, version: int) -> None:
        """`driver.old` is the newest version of a call that the simulated driver has; 0 means all."""
        if 0 < self.machine_number("driver.old") < version:
            raise Failure(Code.FUNCTION_NOT_FOUND)

    def machine_number(self, key: str) -> int:
        value = self.machine.get(key, "0")
        return int(value) if is_number(value) else 0

    def gpu_text(self, gpu: int, key: str) -> str:
        value = self.machine.get(f"gpu.{gpu}.{key}", "")
        return "" if value == "none" else value

    def gpu_number(self, gpu: int, key: str) -> int:
        value = self.machine.get(f"gpu.{gpu}.{key}")
        if value is None and key in ABSENT:
            return ABSENT[key]
        if value is None or not is_number(value):
            raise Failure(Code.NOT_SUPPORTED)
        return int(value)

    def uuid(self, device: Device) -> str:
        own = self.gpu_text(device.gpu, "uuid")
        return own if device.instance is None else instance_uuid(own, device.instance)

    def uses(self, device: Device) -> list[Use]:
        return [
            use
            for use in live_uses(self.directory)
            if use.gpu == device.gpu and device.instance in (None, use.instance)
        ]


def put(argument: Any, layout: str, *values: int | bytes) -> None:
    """Write a C structure to where the argument points."""
    if argument is None:
        raise Failure(Code.INVALID_ARGUMENT)
    data = struct.pack("@" + layout, *values)
    ctypes.memmove(ctypes.addressof(getattr(argument, "_obj", argument)), data, len(data))


def put_text(argument: Any, length: Any, text: str) -> None:
    data = text.encode()
    if not data:
        raise Failure(Code.NOT_SUPPORTED)
    if len(data) >= value_of(length):
        raise Failure(Code.INSUFFICIENT_SIZE)
    put(argument, f"{len(data) + 1}s", data)


def value_of(argument: Any) -> Any:
    """The plain value of a number or text that was passed as a ctypes object or as itself."""
    plain = getattr(argument, "_obj", argument)
    return getattr(plain, "value", plain)


def first_word(argument: Any) -> int:
    return ctypes.c_uint.from_address(ctypes.addressof(getattr(argument, "_obj", argument))).value


def unanswered(view: View, *arguments: Any) -> None:
    """A call that no simulated device supports; a lost one says that it is lost."""
    view.begin()
    first = arguments[0] if arguments else None
    if isinstance(first, ctypes._Pointer) and (device := device_of(first)):
        view.check(device)
    raise Failure(Code.NOT_SUPPORTED)


WORDS = {
    0: "Success",
    1: "Uninitialized",
    2: "Invalid Argument",
    3: "Not Supported",
    4: "Insufficient Permissions",
    6: "Not Found",
    7: "Insufficient Size",
    9: "Driver Not Loaded",
    10: "Timeout",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
    15: "GPU is lost",
    16: "GPU requires reset",
    18: "Driver/library version mismatch",
    25: "Argument Version Mismatch",
}


def error_string(code: Any) -> bytes:
    return WORDS.get(int(value_of(code)), "Unknown Error").encode()
