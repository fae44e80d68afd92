"""Makes the NVML bindings of this process read a simulated machine.

Nothing simulates unless the environment asks for it; who asks, and for which machine, is decided
by `directory_from_environment`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpulease.errors import NoLibrary, SimulationError, UsageError, in_words
from gpulease.simulator import state
from gpulease.simulator.library import library_path

HOW_TO_ASK = (
    f"Set it to a whole number from 1 to {state.MAXIMUM_GPUS}, with a profile after a colon if you like: 4:mixed."
)
ELSEWHERE = "Set GPULEASE_DIR to a folder that can be written to."


def directory_from_environment(environ: Mapping[str, str]) -> Path | None:
    """The machine to simulate, made at first use; None when simulation is not asked for.

    It can be read: a machine that is gone or damaged is an error here, and not a driver that is missing later.
    """
    if named := environ.get("GPULEASE_SIMULATION"):
        return _named(named, environ)
    wanted = environ.get("GPULEASE_SIMULATE", "").strip()
    if wanted in ("", "0"):
        return None
    count, profile = _parse(wanted)
    return _kept(_state_base(environ) / f"simulated-{count}-{profile}", count, profile)


def _named(named: str, environ: Mapping[str, str]) -> Path:
    directory = Path(os.path.abspath(named))
    if environ is os.environ:
        os.environ["GPULEASE_SIMULATION"] = str(directory)  # for us after a chdir, and for those whom we start
    _check(directory, "Leave it by unsetting GPULEASE_SIMULATION, or make a new one with `gpulease simulate -n 4`.")
    return directory


def _kept(directory: Path, count: int, profile: str) -> Path:
    if not os.path.exists(directory / "machine"):
        try:
            state.create(directory, count, profile)
        except SimulationError as error:
            raise SimulationError(error.what, ELSEWHERE) from None
    _check(directory, f"Remove the folder {directory}, and the next command makes a new machine.")
    return directory


def _check(directory: Path, repair: str) -> None:
    try:
        state.read_machine(directory)
    except SimulationError as error:
        raise SimulationError(error.what, repair) from None


def build_library(environ: Mapping[str, str]) -> None:
    """Before anybody waits for the driver with a deadline: a compiler may take longer than a driver may."""
    directory = directory_from_environment(environ)
    if directory is not None:
        library_path(environ, beside=directory)


def activate(directory: Path) -> None:
    """From here on `pynvml` in this process sees the simulated machine; nvmlInit is still the caller's."""
    import ctypes

    import pynvml

    library = library_path(beside=directory)
    try:
        loaded = ctypes.CDLL(str(library))
    except OSError as error:
        raise NoLibrary(
            f"GPUs cannot be simulated: the library cannot be loaded: {in_words(error)}.",
            f"Remove {library.parent}, or set XDG_CACHE_HOME to a folder on a disk that programs may run from.",
        ) from None
    loaded.nvmlsimUse(os.fsencode(directory))
    pynvml.nvmlLib = loaded
    getattr(pynvml, "_nvmlGetFunctionPointer_cache", {}).clear()


def _parse(wanted: str) -> tuple[int, str]:
    count, _, profile = wanted.partition(":")
    if not (state.is_number(count) and len(count) < 10 and 1 <= int(count) <= state.MAXIMUM_GPUS):
        raise UsageError(f"GPULEASE_SIMULATE={wanted[:80]} is not a number of GPUs.", HOW_TO_ASK)
    return int(count), profile or state.DEFAULT_PROFILE


def _state_base(environ: Mapping[str, str]) -> Path:
    if named := environ.get("GPULEASE_DIR"):
        return Path(os.path.abspath(named))
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(runtime) and os.path.isdir(runtime):
        return Path(runtime, "gpulease")
    home = environ.get("HOME") or os.path.expanduser("~")
    return Path(os.path.abspath(home), ".local", "state", "gpulease")
