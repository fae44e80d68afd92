"""The first version of NVML's process list, for drivers older than the calls that nvidia-ml-py knows."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import pynvml

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
