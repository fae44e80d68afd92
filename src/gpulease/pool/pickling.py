"""Values as bytes: pickle where it serves, cloudpickle where it must, large buffers beside, shared ones mapped.

Plain pickle is several times faster, but writes what stands in `__main__` as a mere name, and a worker's `__main__` is
another module. So the fast way is taken first, and left when it fails or has written that name.

NumPy and PyTorch are never imported here: where a value of theirs is, they are loaded already.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import mmap
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import islice
from opcode import opmap
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType, NoneType
from typing import Any, NamedTuple

from gpulease.errors import CannotPickle

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


def write_memory(buffers: Sequence[memoryview]) -> int:
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


def read_memory(descriptor: int, sizes: Sequence[int]) -> list[memoryview]:
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


PROTOCOL = 5
MAIN = b"__main__"
CONSTANTS = frozenset({int, float, complex, bool, str, NoneType, CodeType})
STORE_GLOBAL = opmap["STORE_GLOBAL"]
DEEPEST, MAX_PARTS = 6, 200  # how far to look for what cannot be pickled


class Packed(NamedTuple):
    payload: bytes
    buffers: tuple[memoryview, ...] = ()  # what left the pickle; kept until the item is done, for another try

    @property
    def size(self) -> int:
        return len(self.payload) + sum(buffer.nbytes for buffer in self.buffers)


def pack(value: object, what: str) -> Packed:
    """`what` names the value in the error that says which part of it cannot be pickled."""
    beside = Beside()
    try:
        payload = pickle.dumps(value, PROTOCOL, buffer_callback=beside.keep_inside)
        if MAIN not in payload:
            return Packed(payload, tuple(beside.buffers))
    except Exception:
        pass
    beside = Beside()
    return Packed(pack_whole(value, what, beside.keep_inside), tuple(beside.buffers))


def pack_call(arguments: tuple[Any, ...], keywords: dict[str, Any], function: str) -> Packed:
    """In the error, the argument is named as the caller counts it."""
    try:
        return pack((arguments, keywords), f"An argument of {function}")
    except CannotPickle:
        for number, value in enumerate(arguments, 1):
            pack(value, f"Argument {number} of {function}")
        for name, value in keywords.items():
            pack(value, f"Argument {name!r} of {function}")
        raise


class Beside:
    """The buffers that are large enough to travel beside their pickle."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def keep_inside(self, buffer: pickle.PickleBuffer) -> bool:
        try:
            raw = buffer.raw()
        except BufferError:  # not contiguous
            return True
        if raw.nbytes < OUT_OF_BAND:
            return True
        self.buffers.append(raw)
        return False


def pack_whole(value: object, what: str, keep_inside: Callable[[pickle.PickleBuffer], bool] | None = None) -> bytes:
    """By value where it must be, and with no buffers beside it unless they are asked for."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(value, PROTOCOL, buffer_callback=keep_inside)
        return data
    except Exception as error:
        raise explained(value, what, error) from None


def explained(value: object, what: str, error: Exception) -> CannotPickle:
    """What to tell of a value that pickle gave up on: the path to the innermost object that fails, and why."""
    if isinstance(error, RuntimeError) and "changed size" in str(error):
        return CannotPickle(f"{what} changed while it was copied: {error}.", "Do not change it until the pool has it.")
    for _ in range(DEEPEST):
        try:
            found = next(_failing_parts(value), None)
        except Exception:  # it refuses to be looked into
            break
        if found is None:
            break
        part, value, error = found
        what = f"{what}, {part}"
    reason = str(error).strip().rstrip(".") or type(error).__name__
    return CannotPickle(f"{what} cannot be pickled: {reason}.", object=what)


def _failing_parts(value: object) -> Iterator[tuple[str, object, Exception]]:
    import cloudpickle

    for name, part in islice(_parts(value), MAX_PARTS):
        try:
            cloudpickle.dumps(part)
        except Exception as error:
            yield name, part, error


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        yield from ((f"key {key!r}", part) for key, part in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from ((f"element {number}", part) for number, part in enumerate(value))
    elif inspect.isfunction(value):
        inside = inspect.getclosurevars(value)
        yield from ((f"its variable {name!r}", part) for name, part in {**inside.nonlocals, **inside.globals}.items())
    elif inspect.ismethod(value):
        yield "its object", value.__self__
    else:
        value.__reduce_ex__(PROTOCOL)  # raises where it is the object itself that will not be pickled
        yield from ((f"its attribute {name!r}", part) for name, part in getattr(value, "__dict__", {}).items())


def unpack(payload: bytes, buffers: Sequence[Any] = ()) -> Any:
    return pickle.loads(payload, buffers=buffers)


def has_its_name(function: FunctionType | BuiltinFunctionType) -> bool:
    """Whether its module has it under its name: there it is the same one in every run."""
    found: Any = sys.modules.get(function.__module__ or "")
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def is_importable(function: object) -> bool:
    """Whether it is a function that workers find by its name too."""
    if not isinstance(function, (FunctionType, BuiltinFunctionType)):
        return False
    return function.__module__ != "__main__" and has_its_name(function)


def mark_of(function: object) -> tuple[object, ...] | None:
    """While this is the same, so is the function's pickle. None for one that holds, or refers to, what may change.

    A function that workers import has no more than its name. By value it is its code, and what that refers to; there
    only constants and modules are known not to change. A module's pickle names its loaded submodules: so they count.
    """
    if is_importable(function):
        return ()
    if not isinstance(function, FunctionType) or function.__closure__ or function.__kwdefaults__ or function.__dict__:
        return None
    code, known = function.__code__, function.__globals__
    parts = [code, *(function.__defaults__ or ()), *function.__annotations__.values()]
    parts += [known[name] for name in code.co_names if name in known]
    inner = any(type(part) is CodeType for part in code.co_consts)
    writes = STORE_GLOBAL in code.co_code[::2]  # a worker that keeps it would keep what it wrote
    if inner or writes or not all(map(_is_constant, parts)):
        return None
    return len(sys.modules), *map(id, parts), parts  # equal is not enough: 1 and True are


def _is_constant(part: object) -> bool:
    if isinstance(part, ModuleType):
        return sys.modules.get(part.__name__) is part
    return type(part) in CONSTANTS or (isinstance(part, type) and part.__module__ == "builtins")


def name_of(function: object) -> str:
    for candidate in (function, getattr(function, "func", None), type(function)):
        name = getattr(candidate, "__qualname__", None)
        if name:
            return str(name)
    return repr(function)[:80]


# ---------------------------------------------------------------- as the body of a frame


def to_body(packed: Packed) -> tuple[bytes, int | None]:
    """The body of a frame, and the descriptor of the memory that goes with it, for the caller to close."""
    payload, buffers = packed
    if not buffers and len(payload) < OUT_OF_BAND:
        return payload, None
    inside = len(payload) < OUT_OF_BAND
    parts = list(buffers) if inside else [memoryview(payload), *buffers]
    sizes = [part.nbytes for part in parts]
    return pickle.dumps((sizes, payload if inside else None), PROTOCOL), write_memory(parts)


def from_body(body: bytes, descriptors: tuple[int, ...]) -> Any:
    """The value. What is large is mapped; writes to it stay private, and the pickle says what is read-only."""
    if not descriptors:
        return pickle.loads(body)
    sizes, payload = pickle.loads(body)
    parts: list[Any] = read_memory(descriptors[0], sizes)
    if payload is None:
        payload = parts.pop(0)
    return pickle.loads(payload, buffers=parts)


# -------------------------------------------------------------------- shared with all workers

Reduced = tuple[Any, ...]


def pack_shared(value: dict[str, Any]) -> Packed:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, part: Any) -> Any:
            return _reduced(part) or super().reducer_override(part)

    # Pickle asks nobody about a bytearray.
    value = {name: memoryview(part) if type(part) is bytearray else part for name, part in value.items()}
    beside, file = Beside(), BytesIO()
    try:
        Pickler(file, protocol=PROTOCOL, buffer_callback=beside.keep_inside).dump(value)
    except Exception as error:
        raise explained(value, "shared", error) from None
    return Packed(file.getvalue(), tuple(beside.buffers))


def _reduced(part: Any) -> Reduced | None:
    """How to pickle what is large and could be written to; None for all else."""
    if type(part) is memoryview:
        return _view, (pickle.PickleBuffer(_contiguous(part)),)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and type(part) is numpy.ndarray:
        return _reduced_array(numpy, part)
    torch: Any = sys.modules.get("torch")
    if torch is not None and type(part) is torch.Tensor:
        return _reduced_tensor(torch, part)
    return None


def _contiguous(view: memoryview) -> memoryview:
    """What is given as read-only comes back as read-only, and not as a bytearray."""
    return view.cast("B").toreadonly() if view.c_contiguous and view.nbytes else memoryview(view.tobytes())


def _reduced_array(numpy: Any, array: Any) -> Reduced:
    if array.dtype.hasobject:  # each element has a pickle of its own
        make, arguments, state = array.__reduce__()
        return make, arguments, state, None, None, _set_read_only
    if not (array.flags.c_contiguous or array.flags.f_contiguous):
        array = numpy.ascontiguousarray(array)
    view = array.view()
    view.flags.writeable = False
    reduced: Reduced = view.__reduce_ex__(PROTOCOL)
    return reduced if len(reduced) == 2 else (*reduced, None, None, _set_read_only)


def _set_read_only(array: Any, state: Any) -> None:
    array.__setstate__(state)
    array.flags.writeable = False


def _reduced_tensor(torch: Any, tensor: Any) -> Reduced | None:
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.requires_grad or not tensor.numel():
        return None  # as PyTorch does it
    if tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or find_spec("numpy") is None:
        return None
    # By its bytes: NumPy has no bfloat16.
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return _tensor, (pickle.PickleBuffer(flat), tensor.dtype, tuple(tensor.shape))


# -------------------------------------------------------------------- in the worker


def _view(buffer: Any) -> memoryview:
    return memoryview(buffer).toreadonly()


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    """PyTorch knows no read-only tensor: a write to this one changes a page of this worker's own, and nobody else's."""
    import torch

    if memoryview(buffer).readonly:
        buffer = bytearray(buffer)  # in Ray's store
    return torch.frombuffer(buffer, dtype=torch.uint8).view(dtype).reshape(shape)
