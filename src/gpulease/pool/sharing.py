"""What is shared with all workers, pickled so that they map it: arrays, tensors and byte buffers, read-only.

NumPy and PyTorch are never imported here: where a value of theirs is, they are loaded already.
"""

from __future__ import annotations

import pickle
import sys
from importlib.util import find_spec
from io import BytesIO
from typing import Any

from gpulease.pool.pickling import PROTOCOL, Beside, Packed, explained

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
