"""Large buffers between processes: files in memory without a name, passed as descriptors.

Nothing is named, so nothing is left behind, whoever is killed: the kernel frees the memory with the last descriptor
or mapping. The standard library's `shared_memory` has names, and a tracker process to remove them.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import weakref
from collections.abc import Sequence

ALIGNMENT = 64
OUT_OF_BAND = 1 << 16  # bytes from which a buffer leaves the pickle
MAPPED = 1 << 20  # bytes from which it is mapped instead of read: mappings are limited in number
LARGEST = 1 << 30  # bytes that the kernel writes at once
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FAILED = ctypes.c_void_p(-1).value


def write(buffers: Sequence[memoryview]) -> int:
    """A descriptor of memory that holds these buffers, one after the other, for nobody to change any more.

    Written and not mapped: the kernel copies into fresh pages without a page fault for each.
    """
    descriptor = os.memfd_create("gpulease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        place = 0
        for buffer in buffers:
            flat, done = buffer.cast("B"), 0
            while done < flat.nbytes:
                done += os.pwrite(descriptor, flat[done : done + LARGEST], place + done)
            place = _aligned(place + buffer.nbytes)
        os.ftruncate(descriptor, max(place, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int, sizes: Sequence[int]) -> list[memoryview]:
    """The buffers in the memory behind `descriptor`, which is closed.

    Large ones are mapped. A page is in memory once for all, until somebody writes to it: that copy is his own.
    """
    try:
        total = sum(map(_aligned, sizes))
        if total >= MAPPED:
            whole = _map(descriptor, total)
        else:
            whole = memoryview(bytearray(total))
            os.preadv(descriptor, [whole], 0)
    finally:
        os.close(descriptor)
    place, buffers = 0, []
    for size in sizes:
        buffers.append(whole[place : place + size])
        place = _aligned(place + size)
    return buffers


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _map(descriptor: int, size: int) -> memoryview:
    """Not with the module `mmap`, which keeps a descriptor open for each mapping."""
    address = _library.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, descriptor, 0)
    if address == FAILED:
        raise OSError(ctypes.get_errno(), f"{size} bytes of shared memory cannot be mapped")
    mapped = (ctypes.c_char * size).from_address(address)
    weakref.finalize(mapped, _library.munmap, address, size).atexit = False
    return memoryview(mapped).cast("B")
