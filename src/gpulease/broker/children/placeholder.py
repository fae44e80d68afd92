"""The child that shows a device as taken to tools that only look for processes: a CUDA context, and nothing else.

`python -m gpulease.broker.children.placeholder UUID` makes the context, writes one line, `placed` or `failed WHY`, and
stays until its input ends or the broker does. Nobody but the broker starts it.
"""

from __future__ import annotations

import ctypes
import os
import sys

from gpulease.errors import in_words
from gpulease.system.execution import end_with
from gpulease.system.places import simulated

COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE
PROHIBITED, EXCLUSIVE = 2, 3


class Failed(Exception):
    """No context, and why."""


def main() -> int:
    end_with(os.getppid())  # who waits in a driver that hangs reads no end of file
    try:
        place(_library(), sys.argv[1])
    except Failed as trouble:
        _say(f"failed {trouble}")
        return 1
    _say("placed")
    sys.stdin.buffer.read()
    os._exit(0)


def _say(text: str) -> None:
    try:
        os.write(sys.stdout.fileno(), f"{text}\n".encode())  # in one piece, whatever buffers Python was told to have
    except BrokenPipeError:
        os._exit(0)  # the broker is gone, and nobody wants it


def _library() -> ctypes.CDLL:
    try:
        if not simulated(os.environ):
            return ctypes.CDLL("libcuda.so.1")
        from gpulease.simulator.activate import directory_from_environment
        from gpulease.simulator.library import CUDA_NAME, library_path

        directory = directory_from_environment(os.environ)
        library = ctypes.CDLL(str(library_path(beside=directory).with_name(CUDA_NAME)))
        library.nvmlsimUse(os.fsencode(str(directory)))
    except OSError as trouble:
        raise Failed(f"CUDA's driver library cannot be loaded: {in_words(trouble)}") from None
    return library


def place(library: ctypes.CDLL, uuid: str) -> None:
    """A context on this device; the process sees no other, so that none is touched."""
    os.environ.update(CUDA_VISIBLE_DEVICES=uuid, CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_MODULE_LOADING="LAZY")
    device, mode, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
    _call(library, "cuInit", 0)
    _call(library, "cuDeviceGet", ctypes.byref(device), 0)
    _call(library, "cuDeviceGetAttribute", ctypes.byref(mode), COMPUTE_MODE, device)
    if mode.value in (EXCLUSIVE, PROHIBITED):
        # Where one process only may be on the device, a placeholder would keep its owner out.
        raise Failed("its compute mode admits one process only, or none")
    _call(library, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)


def _call(library: ctypes.CDLL, name: str, *arguments: object) -> None:
    try:
        code = library[name](*arguments)
    except AttributeError:
        raise Failed(f"CUDA's driver library has no {name}") from None
    if code:
        raise Failed(f"{name}: {_text(library, code)}")


def _text(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown error").decode(errors="replace") + f" (CUDA error {code})"


if __name__ == "__main__":
    sys.exit(main())
