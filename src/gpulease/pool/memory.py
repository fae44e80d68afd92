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
LARGEST_WRITE = 1 << 30
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

_library = ctypes.CDLL(None, use_errno=True)
_library.mmap.restype = ctypes.c_void_p
_library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_mapped: dict[int, int] = {}  # address -> size of what is mapped now
FAILED = ctypes.c_void_p(-1).value


def write(buffers: Sequence[memoryview]) -> int:
    """A descriptor of memory that holds these buffers, one after the other, for nobody to change any more.

    Written and not mapped: the kernel copies into fresh pages without a page fault for each.
    """
    descriptor = os.memfd_create("gpulease", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        place = 0
        for buffer in buffers:
            _write_at(descriptor, buffer, place)
            place = _aligned(place + buffer.nbytes)
        os.ftruncate(descriptor, max(place, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int, sizes: Sequence[int], writable: bool) -> list[memoryview]:
    """The buffers in the memory behind `descriptor`, which is closed.

    Large ones are mapped. A page is in memory once for all, until somebody who may writes to it: that copy is his own.
    """
    try:
        total = sum(_aligned(size) for size in sizes)
        if total >= MAPPED:
            whole = _map(descriptor, total, writable)
        else:
            whole = memoryview(bytearray(total))
            os.preadv(descriptor, [whole], 0)
            whole = whole if writable else whole.toreadonly()
    finally:
        os.close(descriptor)
    place, buffers = 0, []
    for size in sizes:
        buffers.append(whole[place : place + size])
        place = _aligned(place + size)
    return buffers


def let_write(view: memoryview) -> bool:
    """Make the pages of a view writable, for this process alone. False for memory that was not mapped here."""
    import numpy

    begin = numpy.frombuffer(view, dtype="u1").ctypes.data
    end = begin + view.nbytes
    if not any(address <= begin and end <= address + size for address, size in list(_mapped.items())):
        return False
    first = begin - begin % mmap.PAGESIZE
    return bool(_library.mprotect(first, end - first, mmap.PROT_READ | mmap.PROT_WRITE) == 0)


def _unmap(address: int, size: int) -> None:
    del _mapped[address]
    _library.munmap(address, size)


def _write_at(descriptor: int, buffer: memoryview, place: int) -> None:
    flat = buffer.cast("B")
    done = 0
    while done < flat.nbytes:
        done += os.pwrite(descriptor, flat[done : done + LARGEST_WRITE], place + done)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _map(descriptor: int, size: int, writable: bool) -> memoryview:
    """Not with the module `mmap`, which keeps a descriptor open for each mapping."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _library.mmap(None, size, protection, mmap.MAP_PRIVATE, descriptor, 0)
    if address == FAILED:
        raise OSError(ctypes.get_errno(), f"{size} bytes of shared memory cannot be mapped")
    mapped = (ctypes.c_char * size).from_address(address)
    _mapped[address] = size
    weakref.finalize(mapped, _unmap, address, size).atexit = False
    view = memoryview(mapped).cast("B")
    return view if writable else view.toreadonly()
