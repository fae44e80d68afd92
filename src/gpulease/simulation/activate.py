"""Makes the NVML bindings of this process read a simulated machine.

Nothing simulates unless the environment asks for it; who asks, and for which machine, is decided
by `directory_from_environment`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpulease.errors import UsageError
from gpulease.simulation import state

HOW_TO_ASK = (
    f"Set it to a whole number from 1 to {state.MAXIMUM_GPUS}, with a profile after a colon if you like: 4:mixed."
)


def directory_from_environment(environ: Mapping[str, str]) -> Path | None:
    """The machine to simulate, made at first use; None when simulation is not asked for."""
    if named := environ.get("GPULEASE_SIMULATION"):
        return Path(named)
    wanted = environ.get("GPULEASE_SIMULATE", "").strip()
    if wanted in ("", "0"):
        return None
    count, profile = _parse(wanted)
    directory = _state_base(environ) / f"simulated-{count}-{profile}"
    if not (directory / "machine").exists():
        state.create(directory, count, profile)
    return directory


def activate(directory: Path) -> None:
    """From here on `pynvml` in this process sees the simulated machine; nvmlInit is still the caller's."""
    from gpulease.simulation.library import library_path

    library = library_path()
    if library is None or not _load(library, directory):
        from gpulease.simulation.standin import install

        install(directory)


def _load(library: Path, directory: Path) -> bool:
    import ctypes

    import pynvml

    try:
        loaded = ctypes.CDLL(str(library))
    except OSError:
        return False
    loaded.nvmlsimUse(os.fsencode(directory))
    pynvml.nvmlLib = loaded
    getattr(pynvml, "_nvmlGetFunctionPointer_cache", {}).clear()
    return True


def _parse(wanted: str) -> tuple[int, str]:
    count, _, profile = wanted.partition(":")
    if not (count.isascii() and count.isdigit() and 1 <= int(count) <= state.MAXIMUM_GPUS):
        raise UsageError(f"GPULEASE_SIMULATE={wanted} is no number of GPUs.", HOW_TO_ASK)
    return int(count), profile or state.DEFAULT_PROFILE


def _state_base(environ: Mapping[str, str]) -> Path:
    if named := environ.get("GPULEASE_DIR"):
        return Path(named)
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "gpulease")
    return Path(environ.get("HOME") or os.path.expanduser("~"), ".local", "state", "gpulease")
