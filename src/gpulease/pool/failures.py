"""Errors of a task on their way from the worker to the caller. Out of memory is an error of its own."""

from __future__ import annotations

import signal
import traceback
from typing import NamedTuple

from gpulease.errors import CannotPickle, OutOfMemory, TaskFailed, WorkerDied
from gpulease.pool.pickling import Packed, pack, pack_whole, unpack

# As the frameworks spell it: PyTorch and cuBLAS, JAX and TensorFlow, CuPy and Numba, the driver.
OUT_OF_MEMORY_NAMES = {"OutOfMemoryError", "ResourceExhaustedError", "CUDARuntimeOutOfMemory"}
OUT_OF_MEMORY_TEXTS = (
    "CUDA out of memory",
    "HIP out of memory",
    "RESOURCE_EXHAUSTED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA error: out of memory",
)


class RemoteTraceback(Exception):
    """Shown as the cause of an error from a worker."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text.rstrip()}\n"""'


class Ending(NamedTuple):
    """How a worker ended."""

    exit_code: int | None = None
    signal: int | None = None
    reported: str | None = None  # by the process that watches it, where the kernel cannot be asked

    def __str__(self) -> str:
        if self.signal is not None:
            hint = "; the machine may have run out of memory" if self.signal == signal.SIGKILL else ""
            return f"was ended by signal {self.signal} ({_signal_name(self.signal)}{hint})"
        return self.reported or f"ended with exit code {self.exit_code}"


def ending_of(return_code: int) -> Ending:
    return Ending(signal=-return_code) if return_code < 0 else Ending(exit_code=return_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def short_of(error: BaseException) -> str:
    """Its kind and what it says, without the full stop: more follows."""
    kind, text = type(error).__qualname__, str(error).strip().rstrip(".")
    return f"{kind}: {text}" if text else kind


def is_out_of_memory(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or names & OUT_OF_MEMORY_NAMES:
        return True
    text = str(error)
    return any(known in text for known in OUT_OF_MEMORY_TEXTS)


def pack_failure(error: BaseException) -> Packed:
    """(the error, its traceback as text, in short, whether memory ran out); no error where it cannot be pickled."""
    text, short, exhausted = "".join(traceback.format_exception(error)), short_of(error), is_out_of_memory(error)
    error.__traceback__ = None
    try:
        payload = pack_whole(error, "The error")
    except CannotPickle:
        payload = b""
    return pack((payload, text, short, exhausted), "The error")


def unpack_failure(failure: tuple[bytes, str, str, bool], where: str) -> BaseException:
    payload, text, short, exhausted = failure
    try:
        error = unpack(payload)
        if not isinstance(error, BaseException):
            raise TypeError
    except BaseException:  # it may even exit
        error = TaskFailed(f"The task raised {short[:500]}.")
    error.__cause__ = RemoteTraceback(text)
    if exhausted and not isinstance(error, OutOfMemory):
        wrapped = _out_of_memory(isinstance(error, MemoryError), where, short[:300])
        wrapped.__cause__ = error
        return wrapped
    return error  # type: ignore[no-any-return]


def _out_of_memory(of_the_host: bool, where: str, short: str) -> OutOfMemory:
    if not of_the_host:
        return OutOfMemory(f"Memory ran out on {where}: {short}.", worker=where)
    text = f"The machine's own memory, not a GPU's, ran out in {where}: {short}."
    return OutOfMemory(text, "Make the item smaller, or use fewer workers; other items are not affected.", worker=where)


def died(ending: Ending, tries: int, function: str) -> WorkerDied:
    times = "" if tries == 1 else f", the last of {tries} that tried it"
    return WorkerDied(
        f"The worker that ran {function} {ending}{times}.",
        exit_code=ending.exit_code,
        signal=ending.signal,
        tries=tries,
    )
