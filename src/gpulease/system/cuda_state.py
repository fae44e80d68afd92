"""Whether CUDA was initialised in this process: from then on it reads CUDA_VISIBLE_DEVICES no more.

Found by what the process has loaded already; nothing is imported or loaded to find it.
"""

from __future__ import annotations

import os
import sys

from gpulease.errors import CudaAlreadyInitialised
from gpulease.model.visible import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_INITIALISED = 3  # CUDA_ERROR_NOT_INITIALIZED, of every call before cuInit


def initialised() -> bool:
    return _torch_says() or _driver_says()


def _torch_says() -> bool:
    """Its own word, for ROCm too."""
    ask = getattr(sys.modules.get("torch.cuda"), "is_initialized", None)
    try:
        return ask is not None and bool(ask())
    except Exception:  # half of it is imported, or somebody's own module has that name
        return False


def _driver_says() -> bool:
    if "ctypes" not in sys.modules:
        return False  # NumPy loads it, and so does whatever uses CUDA from Python
    import ctypes

    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALISED)
    except (OSError, AttributeError):
        return False  # it is not loaded, or is no such library


class _Seen:
    """What the variables were when CUDA was first found to be initialised: what it sees, as far as can be known."""

    def __init__(self) -> None:
        self._shown: dict[str, str | None] | None = None
        self._warned = False

    def look(self) -> bool:
        """Whether it is initialised, and was not when this was asked last."""
        if self._shown is not None or not initialised():
            return False
        self._shown = {name: os.environ.get(name) for name in NAMES}
        return True

    def hides(self, wanted: Mapping[str, str]) -> bool:
        shown = self._shown
        return shown is not None and any(shown[name] != value for name, value in wanted.items())

    def warn(self, call: str, stacklevel: int) -> None:
        if self._warned:
            return
        self._warned = True
        import warnings

        warnings.warn(
            f"CUDA was initialised in this process before {call}(), so CUDA_VISIBLE_DEVICES comes too late: "
            "CUDA goes on using the GPUs that it saw then. "
            f"Call {call}() before anything uses CUDA, best before importing it, or in a new process.",
            CudaAlreadyInitialised,
            stacklevel,
        )


_seen = _Seen()
look = _seen.look


def warn_before(call: str, stacklevel: int = 3) -> None:
    """Before anybody waits for devices that this process could not use."""
    if _seen.look():
        _seen.warn(call, stacklevel + 1)


def warn_after(call: str, wanted: Mapping[str, str], stacklevel: int = 3) -> None:
    """Once it is known which devices they are; those of the last lease may come again."""
    _seen.look()
    if _seen.hides(wanted):
        _seen.warn(call, stacklevel + 1)
